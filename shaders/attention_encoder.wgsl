// attention_encoder: y[t, h] = sum over the keys s of t's own text of softmax(q[t, h] . k[s, h] * scale) v[s, h]
//
// qkv     [tokens, 3 * heads * HEAD_DIM] f32: q, then k, then v     y  [tokens, heads * HEAD_DIM] f32
// bounds  [tokens] vec2<i32>: the first token of t's text, and the one behind its last
// count   [1] u32: tokens from count[0] on are not touched
// grid    (tokens, heads, 1); one workgroup a query, a lane a key of each run of WG keys, then a lane a dim
// WG      power of two, at least HEAD_DIM, const     accumulates in f32
struct Params { num_heads: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read> bounds: array<vec2<i32>>;
@group(0) @binding(2) var<storage, read> count: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;
#include "include/${reduce}.wgsl"
var<workgroup> query: array<f32, HEAD_DIM>;
var<workgroup> shares: array<f32, WG>;
const NEG_LARGE = -3.0e38;

@compute @workgroup_size(WG)
fn attention_encoder(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let token = group.x;
  if (token >= count[0]) { return; }
  let width = params.num_heads * HEAD_DIM;
  let head = group.y * HEAD_DIM;
  let begin = u32(bounds[token].x);
  let end = u32(bounds[token].y);
  if (lane < HEAD_DIM) { query[lane] = qkv[token * 3u * width + head + lane] * params.scale; }
  workgroupBarrier();

  var most = NEG_LARGE;
  var total = 0.0;
  var mixed = 0.0; // of dim `lane`
  for (var first = begin; first < end; first += WG) {
    let key = first + lane;
    var score = NEG_LARGE;
    if (key < end) {
      score = 0.0;
      let at = key * 3u * width + width + head;
      for (var d = 0u; d < HEAD_DIM; d++) { score += query[d] * qkv[at + d]; }
    }
    let now = max(most, workgroup_max(score, lane));
    let share = select(0.0, exp(score - now), key < end);
    let kept = exp(most - now);
    shares[lane] = share;
    total = total * kept + workgroup_sum(share, lane); // its barriers publish the shares too
    mixed *= kept;
    if (lane < HEAD_DIM) {
      for (var s = first; s < min(first + WG, end); s++) {
        mixed += shares[s - first] * qkv[s * 3u * width + 2u * width + head + lane];
      }
    }
    most = now;
    workgroupBarrier();
  }
  if (lane < HEAD_DIM) { y[token * width + head + lane] = mixed / total; }
}
