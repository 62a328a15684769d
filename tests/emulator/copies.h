#ifndef EMULATOR_COPIES_H
#define EMULATOR_COPIES_H

#include <cstdint>

namespace emulator {

// What the emulator keeps in a CUtensorMap.
struct TensorMap {
  uint64_t mark;
  unsigned char *data;
  int64_t rows, columns, row_bytes;
  int box_rows, box_columns;
};
enum : uint64_t { kTensorMapMark = 0x7e2508a97e2508a9 };

} // namespace emulator

#endif
