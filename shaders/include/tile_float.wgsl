// The tile of matmul for float types: a word is 4 columns, two runs of weights are 16 columns of a row.
//
// x [tokens, units * 8] f32
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
alias Word = vec4<f32>;
struct WItem { a: Eight, b: Eight }
struct XScales { none: u32 }
const SMALL_ITEMS = true;
const W_UNITS = 2u;

fn fetch_word(token: u32, first_unit: u32, word: u32, rest: u32) -> Word {
  var found: Word;
  if (!RAGGED || first_unit + word / 2u < params.units) {
    found = x[(token * params.units + first_unit) * 2u + word];
  }
  return found;
}

fn fetch_scales(token: u32, u: u32, rest: u32) -> XScales { return XScales(); }

fn put_scales(scales: XScales, cell: u32, next: u32, n: u32) {}

fn fetch_weights(row: u32, u: u32) -> WItem {
  var pair: WItem;
  if (!RAGGED || u < params.units) { pair.a = load_eight(row, u); }
  if (!RAGGED || u + 1u < params.units) { pair.b = load_eight(row, u + 1u); }
  return pair;
}

fn put_weights(pair: WItem, row: u32, u: u32, cell: u32, n: u32) {
  tile_w[2u * n][cell] = pair.a.lo;
  tile_w[2u * n + 1u][cell] = pair.a.hi;
  tile_w[2u * n][cell + W_STRIDE] = pair.b.lo;
  tile_w[2u * n + 1u][cell + W_STRIDE] = pair.b.hi;
}

// A run of a lane's four rows: first words, second words.
struct Weights { first: mat4x4<f32>, second: mat4x4<f32> }

fn read_weights(cell: u32) -> Weights {
  return Weights(
    mat4x4<f32>(tile_w[0][cell], tile_w[2][cell], tile_w[4][cell], tile_w[6][cell]),
    mat4x4<f32>(tile_w[1][cell], tile_w[3][cell], tile_w[5][cell], tile_w[7][cell]));
}

// sums + what the run of `w` adds for the four tokens of a cell.
fn add_cell(sums: mat4x4<f32>, w: Weights, cell: u32) -> mat4x4<f32> {
  return sums + mat4x4<f32>(
    tile_x[0][cell] * w.first + tile_x[1][cell] * w.second,
    tile_x[2][cell] * w.first + tile_x[3][cell] * w.second,
    tile_x[4][cell] * w.first + tile_x[5][cell] * w.second,
    tile_x[6][cell] * w.first + tile_x[7][cell] * w.second);
}
