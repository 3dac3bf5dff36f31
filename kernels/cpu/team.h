// Threads that help with work that is cut into parts, for calls so short that a barrier would cost more than they do.
//
// Whoever has work does its parts itself; helpers take parts as well, when they come to it. The call is over when all
// parts are done, and waits for helpers only that are in the middle of one. So a helper whose core is given to another
// process holds nobody up: at a barrier, as OpenMP has it, all would wait for it to get a core back, milliseconds in a
// call of microseconds. Helpers look out for work for a while after the last, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace octavo {

class Team {
 public:
  // The one of this process. Its threads end with the process.
  static Team& shared();

  // Calls work(part) once for each part in 0 .. num_parts - 1, each after all before it have been taken, on this thread
  // and at most `num_threads` - 1 others. A call from another thread meanwhile, or from within `work`, does its parts
  // alone. What was written before the call is seen by all parts, and what parts wrote after it.
  template <class Work>
  void run(int num_threads, int num_parts, const Work& work) {
    run_parts(num_threads, num_parts, [](const void* context, int part) { (*static_cast<const Work*>(context))(part); },
              &work);
  }

 private:
  using Function = void (*)(const void* context, int part);

  void run_parts(int num_threads, int num_parts, Function function, const void* context);
  bool take_part(int helper);
  void help(int helper);
  void wake();
  void sleep(uint64_t seen);

  std::mutex busy_;  // held by the thread that has work
  int num_helpers_ = 0;

  // Number of helpers that may help | number of parts | next part. A part belongs to whoever moves `next` past it, and
  // until it is done the fields below stay as they are.
  alignas(64) std::atomic<uint64_t> state_{0};
  Function function_ = nullptr;
  const void* context_ = nullptr;
  alignas(64) std::atomic<int> num_done_{0};

  alignas(64) std::atomic<uint64_t> num_calls_{0};
  std::atomic<int> num_asleep_{0};
  std::mutex sleeping_;
  std::condition_variable woken_;
};

}  // namespace octavo
