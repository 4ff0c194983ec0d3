// matvec: y[t, column + n] (+)= weight[n, :] . x[t, :] (+ bias[first_row + n]), few tokens
//
// quants, scales  a part of a WeightMatrix, through weights/${weight}.wgsl, in units of 32 (quant) or 8 (float) columns
// x       as in include/matvec_int8.wgsl or include/matvec_float.wgsl
// bias    [rows of the whole matrix] f32 or none     count [1] u32: live tokens     y [tokens, y_width] f32
// grid    (weight rows, tokens / M, fold of the rows); LANES lanes share ROWS weight rows, WG lanes a workgroup
// LANES, ROWS (1, 2, 4), WG, M (1, 2, 4, 8), ACCUMULATE  const; LANES divides WG     accumulates in f32
struct Params { units: u32, num_rows: u32, first_row: u32, column: u32, y_width: u32, tokens: u32 }
#include "weights/${weight}.wgsl"
@group(0) @binding(5) var<storage, read> count: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<uniform> params: Params;
#include "include/${operand}.wgsl"
#include "include/output.wgsl"
#include "include/${lanes}.wgsl"

// One sum a token. Written out, since an array indexed by a loop ends up in slow memory.
struct Sums { a: vec4<f32>, b: vec4<f32> }

fn add_unit(sums: Sums, row: u32, u: u32, first_token: u32, live: u32) -> Sums {
  let w = load_step(min(row, params.num_rows - 1u), u);
  let last = vec4<u32>(live - 1u);
  let t = min(vec4<u32>(first_token) + vec4<u32>(0u, 1u, 2u, 3u), last);
  var a = sums.a;
  var b = sums.b;
  a.x += step_product(w, u, t.x);
  if (M > 1u) { a.y += step_product(w, u, t.y); }
  if (M > 2u) {
    a.z += step_product(w, u, t.z);
    a.w += step_product(w, u, t.w);
  }
  if (M > 4u) {
    let more = min(vec4<u32>(first_token) + vec4<u32>(4u, 5u, 6u, 7u), last);
    b.x += step_product(w, u, more.x);
    b.y += step_product(w, u, more.y);
    b.z += step_product(w, u, more.z);
    b.w += step_product(w, u, more.w);
  }
  return Sums(a, b);
}

fn finish_one(value: f32, row: u32, token: u32, live: u32, thread: u32) {
  let total = lane_total(value, thread);
  if (thread % LANES == 0u && row < params.num_rows && token < live) { store(row, token, total); }
}

fn finish(sums: Sums, row: u32, token: u32, live: u32, thread: u32) {
  finish_one(sums.a.x, row, token, live, thread);
  if (M > 1u) { finish_one(sums.a.y, row, token + 1u, live, thread); }
  if (M > 2u) {
    finish_one(sums.a.z, row, token + 2u, live, thread);
    finish_one(sums.a.w, row, token + 3u, live, thread);
  }
  if (M > 4u) {
    finish_one(sums.b.x, row, token + 4u, live, thread);
    finish_one(sums.b.y, row, token + 5u, live, thread);
    finish_one(sums.b.z, row, token + 6u, live, thread);
    finish_one(sums.b.w, row, token + 7u, live, thread);
  }
}

@compute @workgroup_size(WG)
fn matvec(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let token = group.y * M;
  let live = min(count[0], params.tokens);
  if (token >= live) { return; }
  let row = ((group.z * groups.x + group.x) * (WG / LANES) + thread / LANES) * ROWS;
  var sums0: Sums;
  var sums1: Sums;
  var sums2: Sums;
  var sums3: Sums;
  for (var u = thread % LANES; u < params.units; u += LANES) {
    sums0 = add_unit(sums0, row, u, token, live);
    if (ROWS > 1u) { sums1 = add_unit(sums1, row + 1u, u, token, live); }
    if (ROWS > 2u) {
      sums2 = add_unit(sums2, row + 2u, u, token, live);
      sums3 = add_unit(sums3, row + 3u, u, token, live);
    }
  }
  finish(sums0, row, token, live, thread);
  if (ROWS > 1u) { finish(sums1, row + 1u, token, live, thread); }
  if (ROWS > 2u) {
    finish(sums2, row + 2u, token, live, thread);
    finish(sums3, row + 3u, token, live, thread);
  }
}
