// embedding: y[t, :] = weight[id(t), :] * scale, for a quant type
//
// quants, scales  a part of a WeightMatrix, through weights/${weight}.wgsl
// token_ids [tokens] i32, last_tokens u32, sequence_index [tokens] i32: see include/token_id.wgsl
// y       [tokens, units * 32] f32; rows whose id lies in another part (or in none) are not written
// ahead   chunk_alone, or chunk_ahead: y goes on as int8 too, for the next RMS norm's reader
// grid    (tokens, lanes over the units of a row, 1)     WG  const
struct Params { units: u32, num_rows: u32, first_row: u32, scale: f32 }
#include "weights/${weight}.wgsl"
#include "include/token_id.wgsl"
#include "include/${ahead}.wgsl"
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(10) var<uniform> params: Params;

fn store_half(chunk: u32, q: vec4<u32>, scale: f32, minimum: f32) {
  let a = weights4(q.x, scale, minimum);
  let b = weights4(q.y, scale, minimum);
  let c = weights4(q.z, scale, minimum);
  let d = weights4(q.w, scale, minimum);
  let i = chunk * 4u;
  y[i] = a;
  y[i + 1u] = b;
  y[i + 2u] = c;
  y[i + 3u] = d;
  chunk_stored(chunk, a, b, c, d);
}

fn weights4(q: u32, scale: f32, minimum: f32) -> vec4<f32> {
  return (scale * vec4<f32>(unpack4xI8(q)) - minimum) * params.scale;
}

@compute @workgroup_size(WG)
fn embedding(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let t = group.x;
  let u = group.y * WG + lane;
  let id = token_id(t);
  if (u >= params.units || id < params.first_row || id - params.first_row >= params.num_rows) { return; }
  let w = load_unit(id - params.first_row, u);
  let chunks = unit_chunks(u) + t * params.units * 2u;
  store_half(chunks.x, w.lo, w.scale.x, w.minimum.x);
  store_half(chunks.y, w.hi, w.scale.y, w.minimum.y);
}
