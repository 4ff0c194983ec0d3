// The tile of matmul: 64 columns of int8 activations and of a quant type's weights in workgroup memory.
//
// x_q [tokens, units * 32] int8, 4 a word     x_scales [tokens, units * 2] f32 pairs (scale, scale * sum of 16)
// A row's columns lie in four slots of 16, one padding column a slot; slots 0, 1 and 2, 3 share an activation scale.
#include "include/dot16.wgsl"
@group(0) @binding(2) var<storage, read> x_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scales: array<vec2<f32>>;
var<workgroup> tile_x: array<vec4<u32>, 4u * X_STRIDE>;
var<workgroup> tile_x_scales: array<vec2<f32>, 2u * TILE_TOKENS>;  // scale, scale * sum of 32
var<workgroup> tile_w: array<vec4<u32>, 4u * W_STRIDE>;
var<workgroup> tile_w_scales: array<vec2<f32>, 4u * TILE_ROWS>;  // scale, minimum

// Slot s of the tile holds half slot_place(s).y of its unit slot_place(s).x.
fn slot_place(s: u32) -> vec2<u32> {
  if (SPLIT_HALVES) { return vec2<u32>(s & 1u, s >> 1u); }
  return vec2<u32>(s >> 1u, s & 1u);
}

fn load_x(first_token: u32, live: u32, first_unit: u32, thread: u32) {
  for (var i = thread; i < TILE_TOKENS * 4u; i += WG) {
    let t = i >> 2u;
    let s = i & 3u;
    let place = slot_place(s);
    let u = first_unit + place.x;
    var q = vec4<u32>();
    var scales = vec2<f32>();
    if (first_token + t < live && u < params.units) {
      let chunk = (first_token + t) * params.units * 2u + select(unit_chunks(u).x, unit_chunks(u).y, place.y == 1u);
      q = x_q[chunk];
      if ((s & 1u) == 0u) {
        scales = x_scales[chunk];
        if (HAS_MINIMUM) { scales.y += x_scales[chunk + 1u].y; }
      }
    }
    tile_x[s * X_STRIDE + t] = q;
    if ((s & 1u) == 0u) { tile_x_scales[(s >> 1u) * TILE_TOKENS + t] = scales; }
  }
}

fn load_w(first_row: u32, first_unit: u32, thread: u32) {
  for (var i = thread; i < TILE_ROWS * 2u; i += WG) {
    let r = i >> 1u;
    let u = first_unit + (i & 1u);
    var w: Unit;
    if (first_row + r < params.num_rows && u < params.units) { w = load_unit(first_row + r, u); }
    let lo = select(2u * (i & 1u), i & 1u, SPLIT_HALVES);
    let hi = lo + select(1u, 2u, SPLIT_HALVES);
    tile_w[lo * W_STRIDE + r] = w.lo;
    tile_w[hi * W_STRIDE + r] = w.hi;
    tile_w_scales[lo * TILE_ROWS + r] = vec2<f32>(w.scale.x, w.minimum.x);
    tile_w_scales[hi * TILE_ROWS + r] = vec2<f32>(w.scale.y, w.minimum.y);
  }
}

// Four rows of the tile's weights over 32 columns: what a lane multiplies with each of its tokens.
struct Weights {
  first: array<vec4<u32>, 4>,
  second: array<vec4<u32>, 4>,
  first_scale: vec4<f32>,
  second_scale: vec4<f32>,
  minimum: vec4<f32>,
}

fn read_weights(run: u32, lane_x: u32) -> Weights {
  let a = 2u * run * W_STRIDE + lane_x;
  let b = a + W_STRIDE;
  let c = 2u * run * TILE_ROWS + lane_x;
  let s0 = tile_w_scales[c];
  let s1 = tile_w_scales[c + LANES_X];
  let s2 = tile_w_scales[c + 2u * LANES_X];
  let s3 = tile_w_scales[c + 3u * LANES_X];
  var w: Weights;
  w.first = array<vec4<u32>, 4>(
    tile_w[a], tile_w[a + LANES_X], tile_w[a + 2u * LANES_X], tile_w[a + 3u * LANES_X]);
  w.second = array<vec4<u32>, 4>(
    tile_w[b], tile_w[b + LANES_X], tile_w[b + 2u * LANES_X], tile_w[b + 3u * LANES_X]);
  w.first_scale = vec4<f32>(s0.x, s1.x, s2.x, s3.x);
  w.minimum = vec4<f32>(s0.y, s1.y, s2.y, s3.y);
  if (SCALE_GROUP == 16u) {
    let d = c + TILE_ROWS;
    w.second_scale = vec4<f32>(
      tile_w_scales[d].x, tile_w_scales[d + LANES_X].x,
      tile_w_scales[d + 2u * LANES_X].x, tile_w_scales[d + 3u * LANES_X].x);
  }
  return w;
}

fn dots(x: vec4<u32>, w: array<vec4<u32>, 4>) -> vec4<i32> {
  return vec4<i32>(dot16(x, w[0]), dot16(x, w[1]), dot16(x, w[2]), dot16(x, w[3]));
}

// What 32 columns add to the four outputs of token t of the tile.
fn products(w: Weights, run: u32, t: u32) -> vec4<f32> {
  let first = dots(tile_x[2u * run * X_STRIDE + t], w.first);
  let second = dots(tile_x[(2u * run + 1u) * X_STRIDE + t], w.second);
  let scales = tile_x_scales[run * TILE_TOKENS + t];
  if (SCALE_GROUP == 16u) {
    return scales.x * (w.first_scale * vec4<f32>(first) + w.second_scale * vec4<f32>(second));
  }
  let sum = scales.x * w.first_scale * vec4<f32>(first + second);
  if (HAS_MINIMUM) { return sum - scales.y * w.minimum; }
  return sum;
}
