// See team.h.
#include "team.h"

#include <algorithm>
#include <thread>

#if defined(OCTAVO_X86)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr int kPartBits = 24;
constexpr uint64_t kPartMask = (uint64_t{1} << kPartBits) - 1;
constexpr int kLooks = 4000;  // for work, before a helper sleeps: about 100 microseconds

void pause() {
#if defined(OCTAVO_X86)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Team& Team::shared() {
  static Team* team = new Team;  // never destroyed: helpers may outlive static destructors
  return *team;
}

void Team::run_parts(int num_threads, int num_parts, Function function, const void* context) {
  std::unique_lock<std::mutex> busy(busy_, std::defer_lock);
  if (num_threads <= 1 || num_parts <= 1 || num_parts > static_cast<int>(kPartMask) || !busy.try_lock()) {
    for (int part = 0; part < num_parts; ++part) function(context, part);
    return;
  }
  const int helpers = std::min({num_threads - 1, num_parts - 1, 255});
  for (; num_helpers_ < helpers; ++num_helpers_) std::thread(&Team::help, this, num_helpers_).detach();
  function_ = function;
  context_ = context;
  num_done_.store(0, std::memory_order_relaxed);
  state_.store(static_cast<uint64_t>(helpers) << (2 * kPartBits) | static_cast<uint64_t>(num_parts) << kPartBits,
               std::memory_order_release);
  wake();
  while (take_part(-1)) {
  }
  for (int looks = 0; num_done_.load(std::memory_order_acquire) < num_parts; ++looks) {
    pause();
    if (looks > kLooks) std::this_thread::yield();  // to a helper that has lost its core in the middle of a part
  }
}

// Does a part, unless none is left or `helper` has no place in this call.
bool Team::take_part(int helper) {
  uint64_t state = state_.load(std::memory_order_acquire);
  do {
    const int helpers = static_cast<int>(state >> (2 * kPartBits));
    if ((state & kPartMask) >= (state >> kPartBits & kPartMask) || helper >= helpers) return false;
  } while (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  function_(context_, static_cast<int>(state & kPartMask));
  num_done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Team::help(int helper) {
  for (;;) {
    const uint64_t seen = num_calls_.load();
    for (int looks = 0; looks < kLooks; ++looks) {
      if (take_part(helper)) {
        looks = 0;
      } else {
        pause();
      }
    }
    sleep(seen);
  }
}

void Team::wake() {
  num_calls_.fetch_add(1);
  if (num_asleep_.load() == 0) return;
  // Whoever counts as asleep has the lock or waits: it either sees the new count or hears of it.
  const std::lock_guard<std::mutex> lock(sleeping_);
  woken_.notify_all();
}

// Until there has been a call since `seen`.
void Team::sleep(uint64_t seen) {
  std::unique_lock<std::mutex> lock(sleeping_);
  num_asleep_.fetch_add(1);
  woken_.wait(lock, [&] { return num_calls_.load() != seen; });
  num_asleep_.fetch_sub(1);
}

}  // namespace octavo
