// Norms and rotations of rows, compiled once per instruction set (see setup.py). Contract: rows.h.
#include <cmath>
#include <cstring>

#include "rows.h"
#include "simd.h"

namespace {

using namespace octavo;

template <class Element>
void copy_row(const Element* source, float* target, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(target + i, load(source + i));
  if (i == count) return;
  Element padded[kLanes] = {};
  memcpy(padded, source + i, sizeof(Element) * (count - i));
  float rest[kLanes];
  store(rest, load(padded));
  memcpy(target + i, rest, sizeof(float) * (count - i));
}

// 1 / sqrt(mean(x^2) + eps); lanes are summed in order.
float inverse_root_mean_square(const float* x, int64_t count, float eps) {
  vfloat squares = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  float sum = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) sum += squares[lane];
  for (; i < count; ++i) sum += x[i] * x[i];
  return 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
}

void prepare_floats(float* x, int64_t count, const float* weight, float eps, const float* cosines,
                    const float* sines, int64_t pairs) {
  if (weight != nullptr) {
    const float factor = inverse_root_mean_square(x, count, eps);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, load(x + i) * factor * load(weight + i));
    for (; i < count; ++i) x[i] = x[i] * factor * weight[i];
  }
  if (cosines == nullptr) return;
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const vfloat first = load(x + i), second = load(x + pairs + i), c = load(cosines + i), s = load(sines + i);
    store(x + i, first * c - second * s);
    store(x + pairs + i, second * c + first * s);
  }
  for (; i < pairs; ++i) {
    const float first = x[i], second = x[pairs + i];
    x[i] = first * cosines[i] - second * sines[i];
    x[pairs + i] = second * cosines[i] + first * sines[i];
  }
}

void prepare_head(const void* source, DType dtype, float* target, int64_t count, const float* weight, float eps,
                  const float* cosines, const float* sines, int64_t pairs) {
  switch (dtype) {
    case DType::float32: copy_row(static_cast<const float*>(source), target, count); break;
    case DType::bfloat16: copy_row(static_cast<const bf16*>(source), target, count); break;
    default: copy_row(static_cast<const f16*>(source), target, count); break;
  }
  prepare_floats(target, count, weight, eps, cosines, sines, pairs);
}

template <class Element>
void add_row(Element* sum, const Element* branch, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(sum + i, load(sum + i) + load(branch + i));
  if (i == count) return;
  Element padded[2][kLanes] = {};
  memcpy(padded[0], sum + i, sizeof(Element) * (count - i));
  memcpy(padded[1], branch + i, sizeof(Element) * (count - i));
  store(padded[0], load(padded[0]) + load(padded[1]));
  memcpy(sum + i, padded[0], sizeof(Element) * (count - i));
}

template <class Element>
void add_normed_row(Element* sum, const Element* branch, int64_t count, const float* weight, float eps) {
  if (weight == nullptr) return add_row(sum, branch, count);
  constexpr int64_t kChunk = 256;
  vfloat squares = {};
  float rest = 0.0f;
  float chunk[kChunk];
  for (int64_t start = 0; start < count; start += kChunk) {
    const int64_t size = count - start < kChunk ? count - start : kChunk;
    copy_row(branch + start, chunk, size);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) squares = fma(load(chunk + i), load(chunk + i), squares);
    for (; i < size; ++i) rest += chunk[i] * chunk[i];
  }
  float total = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) total += squares[lane];
  const float factor = 1.0f / std::sqrt((total + rest) / static_cast<float>(count) + eps);
  float added[kChunk];
  for (int64_t start = 0; start < count; start += kChunk) {
    const int64_t size = count - start < kChunk ? count - start : kChunk;
    copy_row(branch + start, chunk, size);
    copy_row(sum + start, added, size);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      store(sum + start + i, load(added + i) + load(chunk + i) * factor * load(weight + start + i));
    }
    if (i == size) continue;
    Element padded[kLanes];
    float values[kLanes] = {};
    for (int64_t j = i; j < size; ++j) values[j - i] = added[j] + chunk[j] * factor * weight[start + j];
    store(padded, load(values));
    memcpy(sum + start + i, padded, sizeof(Element) * (size - i));
  }
}

void add_normed(void* sum, const void* branch, DType dtype, int64_t count, const float* weight, float eps) {
  switch (dtype) {
    case DType::float32:
      return add_normed_row(static_cast<float*>(sum), static_cast<const float*>(branch), count, weight, eps);
    case DType::bfloat16:
      return add_normed_row(static_cast<bf16*>(sum), static_cast<const bf16*>(branch), count, weight, eps);
    default: return add_normed_row(static_cast<f16*>(sum), static_cast<const f16*>(branch), count, weight, eps);
  }
}

}  // namespace

namespace octavo {
extern const RowTable OCTAVO_ROWS = {prepare_head, add_normed};
}  // namespace octavo
