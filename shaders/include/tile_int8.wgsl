// The tile of matmul for quant types: a word is 16 int8 columns, an item of weights a unit.
//
// x_q [tokens, units * 32] int8, 4 a word     x_scales [tokens, units] (scale, scale * sum of 16) of two chunks
// The words of a run share an activation scale: they are the halves of a unit, or where those are not neighbours, the
// same half of two units.
@group(0) @binding(2) var<storage, read> x_q: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> x_scales: array<vec4<f32>>;
alias Word = vec4<u32>;
const SMALL_ITEMS = SCALE_GROUP == 32u;
const HAS_MORE = HAS_MINIMUM || SCALE_GROUP == 16u;
var<workgroup> x_scale: array<vec4<f32>, RUNS * X_STRIDE>;
var<workgroup> x_sum: array<vec4<f32>, select(1u, RUNS * X_STRIDE, HAS_MINIMUM)>;  // times scale
var<workgroup> w_scale: array<vec4<f32>, RUNS * W_STRIDE>;
var<workgroup> w_more: array<vec4<f32>, select(1u, RUNS * W_STRIDE, HAS_MORE)>;  // minimum, or the second word's scale

struct XItem { q: vec4<u32>, scales: vec4<f32> }
alias WItem = Packed;

fn fetch_x_word(token: u32, inside: bool, first_unit: u32, word: u32) -> XItem {
  let u = first_unit + select(word >> 1u, (word >> 2u) * 2u + (word & 1u), SPLIT_HALVES);
  let second = select(word, word >> 1u, SPLIT_HALVES) & 1u;
  var item: XItem;
  if (inside && u < params.units) {
    let chunk = token * params.units * 2u + select(unit_chunks(u).x, unit_chunks(u).y, second == 1u);
    item.q = x_q[chunk];
    if ((word & 1u) == 0u) { item.scales = x_scales[chunk >> 1u]; }
  }
  return item;
}

fn put_x_word(item: XItem, cell: u32, n: u32, word: u32) {
  tile_x[cell][2u * n + word] = item.q;
  if (word == 0u) {
    x_scale[cell][n] = item.scales.x;
    if (HAS_MINIMUM) { x_sum[cell][n] = item.scales.y + item.scales.w; }
  }
}

fn fetch_weights(i: u32) -> WItem { return fetch_unit(i); }

// Unit u of the tile, unit i of the matrix.
fn put_weights(item: WItem, i: u32, u: u32, x: u32, n: u32) {
  let w = unpack_unit(item, i);
  let cell = u * W_STRIDE + x;
  if (!SPLIT_HALVES) {
    tile_w[cell][2u * n] = w.lo;
    tile_w[cell][2u * n + 1u] = w.hi;
    w_scale[cell][n] = w.scale.x;
    if (HAS_MINIMUM) { w_more[cell][n] = w.minimum.x; }
    return;
  }
  let word = u & 1u;
  let first = cell - word * W_STRIDE;
  tile_w[first][2u * n + word] = w.lo;
  tile_w[first + W_STRIDE][2u * n + word] = w.hi;
  if (word == 0u) {
    w_scale[first][n] = w.scale.x;
    w_scale[first + W_STRIDE][n] = w.scale.y;
  } else if (HAS_MORE) {
    let more = select(w.minimum, w.scale, SCALE_GROUP == 16u);
    w_more[first][n] = more.x;
    w_more[first + W_STRIDE][n] = more.y;
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
    tile_w[cell][0], tile_w[cell][1], tile_w[cell][2], tile_w[cell][3],
    tile_w[cell][4], tile_w[cell][5], tile_w[cell][6], tile_w[cell][7], w_scale[cell], more);
}

// Sums start at the bits of the float 1.5 * 2^23 and stay within 2^22 of it. There neighbouring floats are 1 apart, so
// the bits as a float, minus that float, are the sum: cheaper than a conversion.
const ZERO = 0x4b400000;

fn floats(sums: vec4<i32>) -> vec4<f32> { return bitcast<vec4<f32>>(sums) - vec4<f32>(12582912.0); }

fn add_dot(sum: i32, a: vec4<u32>, b: vec4<u32>) -> i32 {
  return sum + dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

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
    add_token(sums[0], w, tile_x[cell][0], tile_x[cell][1], scale.x, sum.x),
    add_token(sums[1], w, tile_x[cell][2], tile_x[cell][3], scale.y, sum.y),
    add_token(sums[2], w, tile_x[cell][4], tile_x[cell][5], scale.z, sum.z),
    add_token(sums[3], w, tile_x[cell][6], tile_x[cell][7], scale.w, sum.w));
}
