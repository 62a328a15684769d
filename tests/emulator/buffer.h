// Memory that ends where an unmapped page begins, so that reading or writing past it is a fault.
#ifndef EMULATOR_BUFFER_H
#define EMULATOR_BUFFER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emulator {

template <typename T>
class Buffer {
public:
  explicit Buffer(size_t count) : count_(count), pages_((count * sizeof(T) + kPage - 1) / kPage * kPage) {
    base_ = static_cast<unsigned char *>(
        mmap(nullptr, pages_ + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) abort();
    protect(PROT_READ | PROT_WRITE);
    memset(base_ + kPage, 0xff, pages_);
  }
  Buffer(const Buffer &) = delete;
  ~Buffer() { munmap(base_, pages_ + 2 * kPage); }

  void protect(int protection) {
    if (mprotect(base_ + kPage, pages_, protection) != 0) abort();
  }
  void write_only_by_us(const T *from) { // the kernels may only read it
    protect(PROT_READ | PROT_WRITE);
    memcpy(data(), from, count_ * sizeof(T));
    protect(PROT_READ);
  }
  T *data() { return reinterpret_cast<T *>(base_ + kPage + pages_ - count_ * sizeof(T)); }
  size_t size() const { return count_; }
  // What lies before the first element is as it was.
  bool intact() const {
    for (const unsigned char *p = base_ + kPage, *end = base_ + kPage + pages_ - count_ * sizeof(T); p < end; ++p) {
      if (*p != 0xff) return false;
    }
    return true;
  }

private:
  static constexpr size_t kPage = 4096;
  size_t count_, pages_;
  unsigned char *base_;
};

} // namespace emulator

#endif
