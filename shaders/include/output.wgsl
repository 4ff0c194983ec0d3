// store(row, token, value): y[token, first_row + row], added to what is there when ACCUMULATE.
#include "include/${bias}.wgsl"

fn store(row: u32, token: u32, value: f32) {
  let column = params.first_row + row;
  let i = token * params.y_width + column;
  let sum = value + bias_of(column);
  if (ACCUMULATE) { y[i] += sum; } else { y[i] = sum; }
}
