// The tile of matmul: 16 columns of float activations and weights in workgroup memory.
//
// x [tokens, units * 8] f32; a row's columns lie in four slots of 4, one padding column a slot
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
var<workgroup> tile_x: array<vec4<f32>, 4u * X_STRIDE>;
var<workgroup> tile_w: array<vec4<f32>, 4u * W_STRIDE>;

fn load_x(first_token: u32, live: u32, first_unit: u32, thread: u32) {
  for (var i = thread; i < TILE_TOKENS * 4u; i += WG) {
    let t = i >> 2u;
    let s = i & 3u;
    let inside = first_token + t < live && first_unit + (s >> 1u) < params.units;
    var v = vec4<f32>();
    if (inside) { v = x[((first_token + t) * params.units + first_unit) * 2u + s]; }
    tile_x[s * X_STRIDE + t] = v;
  }
}

fn load_w(first_row: u32, first_unit: u32, thread: u32) {
  for (var i = thread; i < TILE_ROWS * 2u; i += WG) {
    let r = i >> 1u;
    let s = (i & 1u) * 2u;
    let u = first_unit + (i & 1u);
    var w: Eight;
    if (first_row + r < params.num_rows && u < params.units) { w = load_eight(first_row + r, u); }
    tile_w[s * W_STRIDE + r] = w.lo;
    tile_w[(s + 1u) * W_STRIDE + r] = w.hi;
  }
}

// Four rows of the tile's weights over 8 columns: what a lane multiplies with each of its tokens.
struct Weights { first: mat4x4<f32>, second: mat4x4<f32> }

fn read_weights(run: u32, lane_x: u32) -> Weights {
  let a = 2u * run * W_STRIDE + lane_x;
  let b = a + W_STRIDE;
  return Weights(
    mat4x4<f32>(tile_w[a], tile_w[a + LANES_X], tile_w[a + 2u * LANES_X], tile_w[a + 3u * LANES_X]),
    mat4x4<f32>(tile_w[b], tile_w[b + LANES_X], tile_w[b + 2u * LANES_X], tile_w[b + 3u * LANES_X]));
}

// What 8 columns add to the four outputs of token t of the tile.
fn products(w: Weights, run: u32, t: u32) -> vec4<f32> {
  return tile_x[2u * run * X_STRIDE + t] * w.first + tile_x[(2u * run + 1u) * X_STRIDE + t] * w.second;
}
