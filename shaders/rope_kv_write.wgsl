// rope_kv_write: norms q and k heads if the model does, rotates them, writes q and the KV cache
//
// qk, v   [T, row width] f32 as projected: q then k heads; v heads from column v_column on
// q       [T, num_heads, HEAD_DIM] f32, out
// k_cache, v_cache  [num_slots, num_kv_heads, words of a head] u32, out: f16 (write_words), q8_0 (write_q8)
// positions, slots  [T] i32; a negative slot writes nothing to the caches
// cos, sin  [P, rope_dim / 2] f32     q_norm, k_norm  [HEAD_DIM] f32 (with head_norm only)
// skipped, count  [1] u32: tokens below skipped (attention_decode takes them itself) and from count on are not touched
// grid    (num_heads + 2 * num_kv_heads, T, 1); one workgroup a head of a token
// HEAD_DIM even, HALVES (bool: pairs (i, i + rope_dim / 2), else (2i, 2i + 1)), WG power of two: const     queries  queries_plain or queries_tempered
struct Params {
  num_heads: u32, num_kv_heads: u32, qk_width: u32, v_width: u32, v_column: u32, rope_dim: u32, eps: f32
}
@group(0) @binding(0) var<storage, read> qk: array<f32>;
@group(0) @binding(1) var<storage, read> v: array<f32>;
@group(0) @binding(2) var<storage, read_write> q: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<u32>;
@group(0) @binding(5) var<storage, read> positions: array<i32>;
@group(0) @binding(6) var<storage, read> slots: array<i32>;
@group(0) @binding(7) var<storage, read> cos_table: array<f32>;
@group(0) @binding(8) var<storage, read> sin_table: array<f32>;
@group(0) @binding(11) var<storage, read> skipped: array<u32>;
@group(0) @binding(12) var<storage, read> count: array<u32>;
@group(0) @binding(13) var<uniform> params: Params;
const WORDS = HEAD_DIM / 2u;
var<workgroup> heads: array<f32, HEAD_DIM>; // one
fn head_value(i: u32) -> f32 { return heads[i]; }
#include "include/rotate.wgsl"
#include "include/${write}.wgsl"
#include "include/${head_norm}.wgsl"
#include "include/${queries}.wgsl"

@compute @workgroup_size(WG)
fn rope_kv_write(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let token = group.y;
  if (token < skipped[0] || token >= count[0]) { return; }
  let index = group.x;
  let num_rotated = params.num_heads + params.num_kv_heads;
  for (var i = lane; i < HEAD_DIM; i += WG) {
    if (index < num_rotated) {
      heads[i] = qk[token * params.qk_width + index * HEAD_DIM + i];
    } else {
      heads[i] = v[token * params.v_width + params.v_column + (index - num_rotated) * HEAD_DIM + i];
    }
  }
  workgroupBarrier();

  let is_query = index < params.num_heads;
  let is_value = index >= num_rotated;
  if (!is_value) { normalize_head(is_query, lane); }
  let table_row = u32(positions[token]) * (params.rope_dim / 2u);
  let factor = query_factor(u32(positions[token]));
  let slot = slots[token];
  let kv_head = (index - params.num_heads) % params.num_kv_heads;
  if (is_query) {
    for (var w = lane; w < WORDS; w += WG) {
      q[(token * params.num_heads + index) * WORDS + w] =
        vec2<f32>(rotated(0u, 2u * w, table_row), rotated(0u, 2u * w + 1u, table_row)) * factor;
    }
  }
  let row = (u32(slot) * params.num_kv_heads + kv_head) * KV_STRIDE;
  write_kv(!is_query && slot >= 0, is_value, row, table_row, lane);
}
