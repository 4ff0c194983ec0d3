// matmul's sums as a gated activation: gated(gate row n . x, up row n . x), written as int8.
//
// The weight holds all gate rows, then all up rows. The first half of a tile's rows are gate rows, the other half their
// up rows: of a lane's four sums of a token two are gates and two their ups. Half of a tile's rows are whole groups of
// GROUP. Some tokens at a time, as many as the lanes have room for, lie in the memory of the tile to be rounded.
// out_q, out_scales  [tokens, num_rows / 2] as in quantize_q8
@group(0) @binding(6) var<storage, read_write> out_q: array<u32>;
@group(0) @binding(7) var<storage, read_write> out_scales: array<vec2<f32>>;
const OUTPUTS = TILE_ROWS / 2u;
const AT_ONCE = min(2u * SLICES, 4u * GROUPS);  // of a lane's tokens
const QUADS = AT_ONCE * LANES_Y * OUTPUTS / 4u;
const CHUNKS_EACH = OUTPUTS / 16u;
const PLANE = RUNS * X_STRIDE;
#include "include/${activation}.wgsl"
#include "include/${quantize}.wgsl"

fn weight_row(at: Place, local: u32) -> u32 {
  return local / OUTPUTS * ((at.last_row + 1u) / 2u) + at.first_row / 2u + local % OUTPUTS;
}

fn quad(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(tile_x[i / PLANE][i % PLANE]); }

fn put_output(i: u32, value: f32) { tile_x[i / 4u / PLANE][i / 4u % PLANE][i % 4u] = bitcast<u32>(value); }

// A lane's two outputs of one of the tokens at once.
fn put_token(sums: vec4<f32>, n: u32, x: u32, t: u32) {
  let i = (n % AT_ONCE * LANES_Y + t) * OUTPUTS + x;
  put_output(i, gated(sums.x, sums.z));
  put_output(i + LANES_X, gated(sums.y, sums.w));
}

// The slices take turns at adding up.
fn keep_token(mine: vec4<f32>, n: u32, x: u32, t: u32, thread: u32) {
  if (SLICES == 1u) {
    put_token(mine, n, x, t);
    return;
  }
  show_slice(thread, mine);
  workgroupBarrier();
  if (thread / LANES == n % SLICES) { put_token(slice_total(thread), n, x, t); }
  workgroupBarrier();
}

// Round and write the tokens from a lane's n-th on.
fn write_tokens(n: u32, at: Place, thread: u32) {
  workgroupBarrier();
  let first = at.first_token + n * LANES_Y;
  let row_chunks = (at.last_row + 1u) / 32u;
  let live = max(at.last_token + 1u, first) - first;
  quantize_tile(
    Places(first * row_chunks + at.first_row / TILE_ROWS * CHUNKS_EACH, row_chunks, live * CHUNKS_EACH), thread);
  workgroupBarrier();
}

fn keep_tokens(sums: mat4x4<f32>, n: u32, at: Place, x: u32, t: u32, thread: u32) {
  keep_token(sums[0], n, x, t, thread);
  keep_token(sums[1], n + 1u, x, t, thread);
  if (AT_ONCE == 2u) { write_tokens(n, at, thread); }
  keep_token(sums[2], n + 2u, x, t, thread);
  keep_token(sums[3], n + 3u, x, t, thread);
  if (AT_ONCE == 2u) { write_tokens(n + 2u, at, thread); }
  if (AT_ONCE == 4u) { write_tokens(n, at, thread); }
}

fn finish_tile(sums: Sums, at: Place, x: u32, t: u32, thread: u32) {
  workgroupBarrier();  // nobody reads the tile any more
  keep_tokens(sums.a, 0u, at, x, t, thread);
  if (GROUPS > 1u) { keep_tokens(sums.b, 4u, at, x, t, thread); }
  if (AT_ONCE == 8u) { write_tokens(0u, at, thread); }
}
