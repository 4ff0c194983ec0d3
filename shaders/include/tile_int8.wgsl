// The tile of matmul for quant types: a word is 16 int8 columns, two runs of weights are two units.
//
// x_q [tokens, units * 32] int8, 4 a word     x_scales [tokens, units] (scale, scale * sum of 16) of two chunks
// The words of a run share an activation scale: they are the halves of a unit, or where those are not neighbours, the
// same half of two units.
@group(0) @binding(2) var<storage, read> x_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scales: array<vec4<f32>>;
alias Word = vec4<u32>;
const SMALL_ITEMS = SCALE_GROUP == 32u;
// Two units of a type with few scales share their decoding; else a lane has one where that gives all lanes the same.
const W_UNITS = select(2u, 1u, SCALE_GROUP == 16u && TILE_ROWS * RUNS == WG);
const HAS_MORE = HAS_MINIMUM || SCALE_GROUP == 16u;
var<workgroup> x_scale: array<vec4<f32>, X_PLANE>;
var<workgroup> x_sum: array<vec4<f32>, select(1u, X_PLANE, HAS_MINIMUM)>;  // times scale
var<workgroup> w_scale: array<vec4<f32>, W_PLANE>;
var<workgroup> w_more: array<vec4<f32>, select(1u, W_PLANE, HAS_MORE)>;  // minimum, or the second word's scale

struct XScales { a: vec4<f32>, b: vec4<f32> }
struct WItem { a: Packed, b: Packed }

#include "include/tile_words.wgsl"

fn put_scales(scales: XScales, cell: u32, next: u32, n: u32) {
  x_scale[cell][n] = scales.a.x;
  x_scale[next][n] = scales.b.x;
  if (HAS_MINIMUM) {
    x_sum[cell][n] = scales.a.y + scales.a.w;
    x_sum[next][n] = scales.b.y + scales.b.w;
  }
}

fn fetch_weights(row: u32, u: u32) -> WItem {
  let i = row * params.units + u;
  var pair: WItem;
  if (!RAGGED || u < params.units) { pair.a = fetch_unit(i); }
  if (W_UNITS == 2u && (!RAGGED || u + 1u < params.units)) { pair.b = fetch_unit(i + 1u); }
  return pair;
}

// One unit of a type with SPLIT_HALVES and a scale for each half: it is the same word of two runs.
fn put_unit(item: Packed, i: u32, word: u32, cell: u32, n: u32) {
  let unit = unpack_unit(item, i);
  let next = cell + W_STRIDE;
  tile_w[2u * n + word][cell] = unit.lo;
  tile_w[2u * n + word][next] = unit.hi;
  if (word == 0u) {
    w_scale[cell][n] = unit.scale.x;
    w_scale[next][n] = unit.scale.y;
  } else if (HAS_MORE) {
    w_more[cell][n] = unit.scale.x;
    w_more[next][n] = unit.scale.y;
  }
}

// Units u and u + 1 of a row, the first of which goes to `cell`.
fn put_weights(pair: WItem, row: u32, u: u32, cell: u32, n: u32) {
  let i = row * params.units + u;
  if (W_UNITS == 1u) {
    put_unit(pair.a, i, u & 1u, cell - (u & 1u) * W_STRIDE, n);
    return;
  }
  let a = unpack_unit(pair.a, i);
  let b = unpack_unit(pair.b, i + 1u);
  let next = cell + W_STRIDE;
  tile_w[2u * n][cell] = a.lo;
  tile_w[2u * n + 1u][next] = b.hi;
  if (SPLIT_HALVES) {
    tile_w[2u * n + 1u][cell] = b.lo;
    tile_w[2u * n][next] = a.hi;
    w_scale[cell][n] = a.scale.x;
    w_scale[next][n] = a.scale.y;
    let more = select(a.minimum, b.scale, SCALE_GROUP == 16u);
    if (HAS_MORE) {
      w_more[cell][n] = more.x;
      w_more[next][n] = more.y;
    }
    return;
  }
  tile_w[2u * n + 1u][cell] = a.hi;
  tile_w[2u * n][next] = b.lo;
  w_scale[cell][n] = a.scale.x;
  w_scale[next][n] = b.scale.x;
  if (HAS_MINIMUM) {
    w_more[cell][n] = a.minimum.x;
    w_more[next][n] = b.minimum.x;
  }
}

// A run of a lane's four rows: first words, second words.
struct Weights {
  a0: vec4<u32>, b0: vec4<u32>, a1: vec4<u32>, b1: vec4<u32>,
  a2: vec4<u32>, b2: vec4<u32>, a3: vec4<u32>, b3: vec4<u32>,
  scale: vec4<f32>, more: vec4<f32>,
}

fn read_weights(cell: u32) -> Weights {
  var more: vec4<f32>;
  if (HAS_MORE) { more = w_more[cell]; }
  return Weights(
    tile_w[0][cell], tile_w[1][cell], tile_w[2][cell], tile_w[3][cell],
    tile_w[4][cell], tile_w[5][cell], tile_w[6][cell], tile_w[7][cell], w_scale[cell], more);
}

#include "include/tile_dots.wgsl"

fn add_token(sums: vec4<f32>, w: Weights, a: vec4<u32>, b: vec4<u32>, scale: f32, sum: f32) -> vec4<f32> {
  let first = vec4<i32>(add_dot(ZERO, a, w.a0), add_dot(ZERO, a, w.a1), add_dot(ZERO, a, w.a2), add_dot(ZERO, a, w.a3));
  if (SCALE_GROUP == 16u) {
    let second = vec4<i32>(
      add_dot(ZERO, b, w.b0), add_dot(ZERO, b, w.b1), add_dot(ZERO, b, w.b2), add_dot(ZERO, b, w.b3));
    return fma(vec4<f32>(scale), fma(w.more, floats(second), w.scale * floats(first)), sums);
  }
  let both = vec4<i32>(
    add_dot(first.x, b, w.b0), add_dot(first.y, b, w.b1), add_dot(first.z, b, w.b2), add_dot(first.w, b, w.b3));
  let added = fma(scale * w.scale, floats(both), sums);
  if (HAS_MINIMUM) { return fma(vec4<f32>(-sum), w.more, added); }
  return added;
}

// sums + what the run of `w` adds for the four tokens of a cell.
fn add_cell(sums: mat4x4<f32>, w: Weights, cell: u32) -> mat4x4<f32> {
  let scale = x_scale[cell];
  var sum: vec4<f32>;
  if (HAS_MINIMUM) { sum = x_sum[cell]; }
  return mat4x4<f32>(
    add_token(sums[0], w, tile_x[0][cell], tile_x[1][cell], scale.x, sum.x),
    add_token(sums[1], w, tile_x[2][cell], tile_x[3][cell], scale.y, sum.y),
    add_token(sums[2], w, tile_x[4][cell], tile_x[5][cell], scale.z, sum.z),
    add_token(sums[3], w, tile_x[6][cell], tile_x[7][cell], scale.w, sum.w));
}
