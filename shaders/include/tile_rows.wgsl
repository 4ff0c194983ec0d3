// matmul's sums as they are: y[t, column + n] (+)= weight[n, :] . x[t, :] (+ bias[first_row + n]).
//
// ACCUMULATE  const
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
#include "include/output.wgsl"

fn weight_row(at: Place, local: u32) -> u32 { return min(at.first_row + local, at.last_row); }

fn store4(sums: vec4<f32>, at: Place, row: u32, token: u32) {
  if (token > at.last_token) { return; }
  if (row <= at.last_row) { store(row, token, sums.x); }
  if (row + LANES_X <= at.last_row) { store(row + LANES_X, token, sums.y); }
  if (row + 2u * LANES_X <= at.last_row) { store(row + 2u * LANES_X, token, sums.z); }
  if (row + 3u * LANES_X <= at.last_row) { store(row + 3u * LANES_X, token, sums.w); }
}

// One token's four outputs. The slices take turns at adding up, `turn` says which.
fn finish_token(mine: vec4<f32>, turn: u32, at: Place, row: u32, token: u32, thread: u32) {
  if (SLICES == 1u) {
    store4(mine, at, row, token);
    return;
  }
  show_slice(thread, mine);
  workgroupBarrier();
  if (thread / LANES == turn % SLICES) { store4(slice_total(thread), at, row, token); }
  workgroupBarrier();
}

fn finish(sums: mat4x4<f32>, turn: u32, at: Place, row: u32, token: u32, thread: u32) {
  finish_token(sums[0], turn, at, row, token, thread);
  finish_token(sums[1], turn + 1u, at, row, token + LANES_Y, thread);
  finish_token(sums[2], turn + 2u, at, row, token + 2u * LANES_Y, thread);
  finish_token(sums[3], turn + 3u, at, row, token + 3u * LANES_Y, thread);
}

fn finish_tile(sums: Sums, at: Place, x: u32, t: u32, thread: u32) {
  let row = at.first_row + x;
  let token = at.first_token + t;
  if (SLICES > 1u) { workgroupBarrier(); }  // nobody reads the tile any more
  finish(sums.a, 0u, at, row, token, thread);
  if (GROUPS > 1u) { finish(sums.b, 4u, at, row, token + 4u * LANES_Y, thread); }
}
