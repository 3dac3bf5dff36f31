// Vectors of 64 bytes, whatever the instruction set: of the compiler's own where registers are as wide, else of several
// that are. Compilers do know wider vectors than registers, but copy them through memory at every turn.
//
// Like simd.h, everything has internal linkage.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "simd.h"

namespace octavo {
namespace {

template <class Work, int... i>
inline __attribute__((always_inline)) void repeat(std::integer_sequence<int, i...>, const Work& work) {
  (work(i), ...);
}

// work(0), work(1), .. work(count - 1), each a copy of its own, so that arrays of vectors become registers.
template <int count, class Work>
inline __attribute__((always_inline)) void repeat(const Work& work) {
  repeat(std::make_integer_sequence<int, count>(), work);
}

#if defined(__AVX512F__)

typedef float Float16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));
typedef uint32_t Uint16 __attribute__((vector_size(64)));
typedef int16_t Short32 __attribute__((vector_size(64)));
typedef uint8_t Byte64 __attribute__((vector_size(64)));

// The same bits.
template <class To, class From>
inline To cast(From x) {
  return reinterpret_cast<To>(x);
}

// The same numbers.
template <class To, class From>
inline To converted(From x) {
  return __builtin_convertvector(x, To);
}

inline Int16 larger_of(Int16 a, Int16 b) { return a > b ? a : b; }

#else

// Does by elements what the compiler's own vectors do.
template <class Element>
struct WideVector {
  typedef Element Part __attribute__((vector_size(kLanes * 4)));
  static constexpr int kParts = 16 / kLanes;

  Part parts[kParts];

  WideVector() = default;
  // By parts as well: the compiler's own copies are of 16 bytes, which cannot be read as one part until they are stored.
  inline __attribute__((always_inline)) WideVector(const WideVector& other) { *this = other; }
  inline __attribute__((always_inline)) WideVector& operator=(const WideVector& other) {
    repeat<kParts>([&](int i) __attribute__((always_inline)) { parts[i] = other.parts[i]; });
    return *this;
  }
  inline __attribute__((always_inline)) WideVector(Element x) {  // in every lane
    repeat<kParts>([&](int i) __attribute__((always_inline)) { parts[i] = x - Part{}; });
  }

  Element operator[](int lane) const { return reinterpret_cast<const Element*>(parts)[lane]; }

  static inline __attribute__((always_inline)) WideVector load(const void* p) {
    return of_parts([&](int i) __attribute__((always_inline)) {
      Part part;
      memcpy(&part, static_cast<const uint8_t*>(p) + i * sizeof part, sizeof part);
      return part;
    });
  }
  inline __attribute__((always_inline)) void store(void* p) const {
    repeat<kParts>([&](int i) __attribute__((always_inline)) {
      memcpy(static_cast<uint8_t*>(p) + i * sizeof(Part), &parts[i], sizeof(Part));
    });
  }

  template <class Result = Element, class Work>
  static inline __attribute__((always_inline)) WideVector<Result> of_parts(const Work& work) {
    WideVector<Result> result;
    repeat<kParts>([&](int i) __attribute__((always_inline)) { result.parts[i] = work(i); });
    return result;
  }

#define OCTAVO_BY_PARTS(op)                                                                          \
  friend inline __attribute__((always_inline)) WideVector operator op(WideVector a, WideVector b) {  \
    return of_parts([&](int i) __attribute__((always_inline)) { return a.parts[i] op b.parts[i]; }); \
  }                                                                                                  \
  inline __attribute__((always_inline)) WideVector& operator op##=(WideVector other) { return *this = *this op other; }
  OCTAVO_BY_PARTS(+)
  OCTAVO_BY_PARTS(-)
  OCTAVO_BY_PARTS(*)
  OCTAVO_BY_PARTS(&)
  OCTAVO_BY_PARTS(|)
#undef OCTAVO_BY_PARTS

  friend inline __attribute__((always_inline)) WideVector operator-(WideVector a) {
    return of_parts([&](int i) __attribute__((always_inline)) { return -a.parts[i]; });
  }
  friend inline __attribute__((always_inline)) WideVector operator~(WideVector a) {
    return of_parts([&](int i) __attribute__((always_inline)) { return ~a.parts[i]; });
  }
  friend inline __attribute__((always_inline)) WideVector operator<<(WideVector a, int bits) {
    return of_parts([&](int i) __attribute__((always_inline)) { return a.parts[i] << bits; });
  }
  friend inline __attribute__((always_inline)) WideVector operator>>(WideVector a, int bits) {
    return of_parts([&](int i) __attribute__((always_inline)) { return a.parts[i] >> bits; });
  }
  // All bits are set where it holds.
  friend inline __attribute__((always_inline)) WideVector<int32_t> operator<(WideVector a, WideVector b) {
    return of_parts<int32_t>([&](int i) __attribute__((always_inline)) { return a.parts[i] < b.parts[i]; });
  }
};

typedef WideVector<float> Float16;
typedef WideVector<int32_t> Int16;
typedef WideVector<uint32_t> Uint16;
typedef WideVector<int16_t> Short32;
typedef WideVector<uint8_t> Byte64;

template <class To, class From>
inline __attribute__((always_inline)) To cast(const From& x) {
  To result;
  repeat<To::kParts>([&](int i) __attribute__((always_inline)) {
    result.parts[i] = reinterpret_cast<typename To::Part>(x.parts[i]);
  });
  return result;
}

template <class To, class From>
inline __attribute__((always_inline)) To converted(const From& x) {
  To result;
  repeat<To::kParts>([&](int i) __attribute__((always_inline)) {
    result.parts[i] = __builtin_convertvector(x.parts[i], typename To::Part);
  });
  return result;
}

inline __attribute__((always_inline)) Int16 larger_of(Int16 a, Int16 b) {
  return Int16::of_parts(
      [&](int i) __attribute__((always_inline)) { return a.parts[i] > b.parts[i] ? a.parts[i] : b.parts[i]; });
}

#endif

template <class Vector>
inline __attribute__((always_inline)) Vector load_vector(const void* p) {
  if constexpr (std::is_class_v<Vector>) {
    return Vector::load(p);
  } else {
    Vector x;
    memcpy(&x, p, sizeof x);
    return x;
  }
}

template <class Vector>
inline __attribute__((always_inline)) void store_vector(void* p, const Vector& x) {
  if constexpr (std::is_class_v<Vector>) {
    x.store(p);
  } else {
    memcpy(p, &x, sizeof x);
  }
}

}  // namespace
}  // namespace octavo
