// Memory of a thread for its own use.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace octavo {

// Memory that grows and is not initialised.
template <class Element>
class Scratch {
 public:
  bool reserve(int64_t count) {
    if (count <= size_) return true;
    data_.reset(new (std::nothrow) Element[count]);
    size_ = data_ == nullptr ? 0 : count;
    return size_ == count;
  }

  Element* get() const { return data_.get(); }

 private:
  std::unique_ptr<Element[]> data_;
  int64_t size_ = 0;
};

}  // namespace octavo
