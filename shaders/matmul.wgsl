// matmul: y[t, column + n] (+)= weight[n, :] . x[t, :] (+ bias[first_row + n]), many tokens
//
// Tensors are those of matvec. A workgroup makes TILE_TOKENS x TILE_ROWS outputs, a lane LANE_TOKENS x 4 of them,
// interleaved so that neighbouring lanes read neighbouring words; two units of columns at a time lie in workgroup
// memory, see include/tile_int8.wgsl and include/tile_float.wgsl.
// grid    (row tiles, token tiles, fold of the row tiles); tiles beyond count exit at once; any number of rows
// TILE_TOKENS, TILE_ROWS, LANE_TOKENS (1, 2, 4, 8), ACCUMULATE, WG = TILE_TOKENS / LANE_TOKENS * TILE_ROWS / 4  const
// tried   int8, scales applied in f32 every 32 columns: 52-59 TOP/s on an H200. Numbers: docs/performance.md
struct Params { units: u32, num_rows: u32, first_row: u32, column: u32, y_width: u32, tokens: u32 }
#include "weights/${weight}.wgsl"
@group(0) @binding(5) var<storage, read> count: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;

const LANES_X = TILE_ROWS / 4u;
const LANES_Y = TILE_TOKENS / LANE_TOKENS;
const X_STRIDE = TILE_TOKENS + 1u;
const W_STRIDE = TILE_ROWS + 1u;
#include "include/${operand}.wgsl"
#include "include/output.wgsl"

fn store4(sums: vec4<f32>, row: u32, token: u32, live: u32) {
  if (token >= live) { return; }
  if (row < params.num_rows) { store(row, token, sums.x); }
  if (row + LANES_X < params.num_rows) { store(row + LANES_X, token, sums.y); }
  if (row + 2u * LANES_X < params.num_rows) { store(row + 2u * LANES_X, token, sums.z); }
  if (row + 3u * LANES_X < params.num_rows) { store(row + 3u * LANES_X, token, sums.w); }
}

@compute @workgroup_size(WG)
fn matmul(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let first_token = group.y * TILE_TOKENS;
  let live = min(count[0], params.tokens);
  let first_row = (group.z * groups.x + group.x) * TILE_ROWS;
  if (first_token >= live || first_row >= params.num_rows) { return; }
  let x = thread % LANES_X;
  let t = thread / LANES_X;

  // Written out, since an array indexed by a loop ends up in slow memory.
  var sums0 = vec4<f32>();
  var sums1 = vec4<f32>();
  var sums2 = vec4<f32>();
  var sums3 = vec4<f32>();
  var sums4 = vec4<f32>();
  var sums5 = vec4<f32>();
  var sums6 = vec4<f32>();
  var sums7 = vec4<f32>();
  for (var u = 0u; u < params.units; u += 2u) {
    workgroupBarrier();
    load_x(first_token, live, u, thread);
    load_w(first_row, u, thread);
    workgroupBarrier();
    for (var run = 0u; run < 2u; run++) {
      let w = read_weights(run, x);
      sums0 += products(w, run, t);
      if (LANE_TOKENS > 1u) { sums1 += products(w, run, t + LANES_Y); }
      if (LANE_TOKENS > 2u) {
        sums2 += products(w, run, t + 2u * LANES_Y);
        sums3 += products(w, run, t + 3u * LANES_Y);
      }
      if (LANE_TOKENS > 4u) {
        sums4 += products(w, run, t + 4u * LANES_Y);
        sums5 += products(w, run, t + 5u * LANES_Y);
        sums6 += products(w, run, t + 6u * LANES_Y);
        sums7 += products(w, run, t + 7u * LANES_Y);
      }
    }
  }
  let row = first_row + x;
  let token = first_token + t;
  store4(sums0, row, token, live);
  if (LANE_TOKENS > 1u) { store4(sums1, row, token + LANES_Y, live); }
  if (LANE_TOKENS > 2u) {
    store4(sums2, row, token + 2u * LANES_Y, live);
    store4(sums3, row, token + 3u * LANES_Y, live);
  }
  if (LANE_TOKENS > 4u) {
    store4(sums4, row, token + 4u * LANES_Y, live);
    store4(sums5, row, token + 5u * LANES_Y, live);
    store4(sums6, row, token + 6u * LANES_Y, live);
    store4(sums7, row, token + 7u * LANES_Y, live);
  }
}
