// store(row, token, value): y[token, column + row], added to what is there when ACCUMULATE.
#include "include/${bias}.wgsl"

fn store(row: u32, token: u32, value: f32) {
  let i = token * params.y_width + params.column + row;
  let sum = value + bias_of(params.first_row + row);
  if (ACCUMULATE) { y[i] += sum; } else { y[i] = sum; }
}
