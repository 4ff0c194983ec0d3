// matvec: products of weight rows with few tokens; include/finish_*.wgsl says which rows and what becomes of them
//
// quants, scales  a part of a WeightMatrix, through weights/${weight}.wgsl, in units of 32 (quant) or 8 (float) columns
// x       as in include/matvec_int8.wgsl or include/matvec_float.wgsl     count [1] u32: live tokens
// grid    (tiles of weight rows, tokens / M, fold of the tiles); LANES lanes share ROWS weight rows, WG lanes a workgroup
// LANES, ROWS (1, 2, 4), UNITS (1, 2, 4: units in flight), WG, M (1, 2, 4, 8)  const; LANES divides WG
// Nothing waits for count before the weights are on their way: tokens that are not live are computed and dropped.
struct Params { units: u32, num_rows: u32, first_row: u32, column: u32, y_width: u32, tokens: u32, eps: f32 }
#include "weights/${weight}.wgsl"
@group(0) @binding(5) var<storage, read> count: array<u32>;
@group(0) @binding(12) var<uniform> params: Params;
const TILE_ROWS = WG / LANES * ROWS;
#include "include/${token}.wgsl"
#include "include/${operand}.wgsl"
#include "include/${norm}.wgsl"
#include "include/${lanes}.wgsl"
#include "include/${finish}.wgsl"

// Of each token, the sums of a lane's rows. Written out, since an array indexed by a loop ends up in slow memory.
struct Sums {
  t0: vec4<f32>, t1: vec4<f32>, t2: vec4<f32>, t3: vec4<f32>,
  t4: vec4<f32>, t5: vec4<f32>, t6: vec4<f32>, t7: vec4<f32>,
  squares: vec4<f32>, more_squares: vec4<f32>,
}
struct Rows { r0: Step, r1: Step, r2: Step, r3: Step }

fn products(w: Rows, x: Operand) -> vec4<f32> {
  var p = vec4<f32>(step_product(w.r0, x), 0.0, 0.0, 0.0);
  if (ROWS > 1u) { p.y = step_product(w.r1, x); }
  if (ROWS > 2u) {
    p.z = step_product(w.r2, x);
    p.w = step_product(w.r3, x);
  }
  return p;
}

fn add_unit(before: Sums, tile: u32, local: u32, u: u32, token: u32) -> Sums {
  var w: Rows;
  w.r0 = load_step(weight_row(tile, local), u);
  if (ROWS > 1u) { w.r1 = load_step(weight_row(tile, local + 1u), u); }
  if (ROWS > 2u) {
    w.r2 = load_step(weight_row(tile, local + 2u), u);
    w.r3 = load_step(weight_row(tile, local + 3u), u);
  }
  let last = params.tokens - 1u;
  let t = min(vec4<u32>(token) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(last));
  var s = before;
  s.t0 += products(w, load_operand(u, t.x));
  s.squares.x += squares_of(u, t.x);
  if (M > 1u) {
    s.t1 += products(w, load_operand(u, t.y));
    s.squares.y += squares_of(u, t.y);
  }
  if (M > 2u) {
    s.t2 += products(w, load_operand(u, t.z));
    s.t3 += products(w, load_operand(u, t.w));
    s.squares.z += squares_of(u, t.z);
    s.squares.w += squares_of(u, t.w);
  }
  if (M > 4u) {
    let more = min(vec4<u32>(token) + vec4<u32>(4u, 5u, 6u, 7u), vec4<u32>(last));
    s.t4 += products(w, load_operand(u, more.x));
    s.t5 += products(w, load_operand(u, more.y));
    s.t6 += products(w, load_operand(u, more.z));
    s.t7 += products(w, load_operand(u, more.w));
    s.more_squares += vec4<f32>(
      squares_of(u, more.x), squares_of(u, more.y), squares_of(u, more.z), squares_of(u, more.w));
  }
  return s;
}

// The sums of token `first + index` over all lanes, on to where they are kept.
fn finish(sum: vec4<f32>, squares: f32, tile: u32, local: u32, first: u32, index: u32, live: u32, thread: u32) {
  var total = lane_total(sum, thread);
  if (NORMED) { total *= norm_scale(squares); }
  if (thread % LANES == 0u) { keep(total, tile, local, first, index, live); }
}

@compute @workgroup_size(WG)
fn matvec(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let token = group.y * M;
  let live = min(count[0], params.tokens);
  if (group.y > 0u && token >= live) { return; }
  let tile = group.z * groups.x + group.x;
  let local = thread / LANES * ROWS;
  let early = prefetch(tile, thread);
  var s: Sums;
  if (thread % LANES == 0u) {
    s.t0 = start(tile, local, token);
    if (M > 1u) { s.t1 = start(tile, local, token + 1u); }
    if (M > 2u) {
      s.t2 = start(tile, local, token + 2u);
      s.t3 = start(tile, local, token + 3u);
    }
    if (M > 4u) {
      s.t4 = start(tile, local, token + 4u);
      s.t5 = start(tile, local, token + 5u);
      s.t6 = start(tile, local, token + 6u);
      s.t7 = start(tile, local, token + 7u);
    }
  }
  var u = thread % LANES;
  for (; u + (UNITS - 1u) * LANES < params.units; u += UNITS * LANES) {
    s = add_unit(s, tile, local, u, token);
    if (UNITS > 1u) { s = add_unit(s, tile, local, u + LANES, token); }
    if (UNITS > 2u) {
      s = add_unit(s, tile, local, u + 2u * LANES, token);
      s = add_unit(s, tile, local, u + 3u * LANES, token);
    }
  }
  for (; u < params.units; u += LANES) { s = add_unit(s, tile, local, u, token); }

  if (NORMED) {
    s.squares = lane_total(s.squares, thread);
    if (M > 4u) { s.more_squares = lane_total(s.more_squares, thread); }
  }
  finish(s.t0, s.squares.x, tile, local, token, 0u, live, thread);
  if (M > 1u) { finish(s.t1, s.squares.y, tile, local, token, 1u, live, thread); }
  if (M > 2u) {
    finish(s.t2, s.squares.z, tile, local, token, 2u, live, thread);
    finish(s.t3, s.squares.w, tile, local, token, 3u, live, thread);
  }
  if (M > 4u) {
    finish(s.t4, s.more_squares.x, tile, local, token, 4u, live, thread);
    finish(s.t5, s.more_squares.y, tile, local, token, 5u, live, thread);
    finish(s.t6, s.more_squares.z, tile, local, token, 6u, live, thread);
    finish(s.t7, s.more_squares.w, tile, local, token, 7u, live, thread);
  }
  finish_tile(early, tile, token, live, thread);
}
