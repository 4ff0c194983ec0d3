// attention_decode_subgroups: attention_decode for devices whose subgroups have one size
//
// Tensors, params, grid and result are attention_decode's. HEAD_DIM is a multiple of 8, rope_dim one of 16.
// HEAD_DIM, HALVES, BLOCK_SIZE, SPLIT_TOKENS, WG, SUBGROUP, PARTS (HEAD_DIM / 8 rounded up to a power of two): const
// WHOLE (no window, one split) const: keys begin at 0, so that finding their blocks waits for no length
//
// PARTS lanes share a key, eight dims of 16 bytes each, so that neighbouring lanes read neighbouring bytes. Each such
// group walks keys of its own and keeps its own maximum: values are read together with keys, and nothing waits for
// another group before the end. Every group rotates the queries itself, which costs no wait either; the new key and
// value are the first subgroup's.
struct Params {
  num_heads: u32, num_kv_heads: u32, table_width: u32, window: u32, splits: u32,
  qk_width: u32, v_width: u32, v_column: u32, rope_dim: u32, scale: f32, eps: f32
}
@group(0) @binding(0) var<storage, read> qk: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> k_cache: array<KvCell>;
@group(0) @binding(3) var<storage, read_write> v_cache: array<KvCell>;
@group(0) @binding(4) var<storage, read> block_tables: array<i32>;
@group(0) @binding(5) var<storage, read> context_lens: array<i32>;
@group(0) @binding(6) var<storage, read> cos_table: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> sin_table: array<vec4<f32>>;
@group(0) @binding(10) var<storage, read> count: array<u32>;
@group(0) @binding(14) var<uniform> params: Params;
#include "include/kv_four.wgsl"
#include "include/splits.wgsl"
#include "include/eight.wgsl"

const WORDS = HEAD_DIM / KV_DIMS;
const OCTETS = HEAD_DIM / 8u; // of a head: lanes of a group beyond them multiply with zeros
const GROUPS = WG / PARTS;
const SUBGROUPS = WG / SUBGROUP;
const JOINED = SUBGROUP / PARTS; // groups of a subgroup
const NEG_LARGE = -3.0e38;
const NO_SCORE = -3.0e37; // below every score, and so far above NEG_LARGE that what has that gets no weight
#include "include/${octet}.wgsl"
#include "include/${heads}.wgsl"
#include "include/rotate_octet.wgsl"
#include "include/${queries}.wgsl"
#include "include/${together}.wgsl"
#include "include/lanes_joined.wgsl"
var<workgroup> most_parts: array<Each, SUBGROUPS>;
var<workgroup> total_parts: array<Each, SUBGROUPS>;
var<workgroup> sums: array<Kv, HEADS_TOGETHER * SUBGROUPS * WORDS>;
#include "include/${target}.wgsl"

fn slot_row(row: u32, position: u32, kv_head: u32) -> u32 {
  let index = min(position / BLOCK_SIZE, params.table_width - 1u);
  let block = u32(block_tables[row * params.table_width + index]);
  return ((block * BLOCK_SIZE + position % BLOCK_SIZE) * params.num_kv_heads + kv_head) * KV_STRIDE;
}

// Where four keys of a group start, GROUPS apart; no sense where there is no such key.
fn rows_of(row: u32, key: u32, kv_head: u32) -> vec4<u32> {
  return vec4<u32>(
    slot_row(row, key, kv_head), slot_row(row, key + GROUPS, kv_head),
    slot_row(row, key + 2u * GROUPS, kv_head), slot_row(row, key + 3u * GROUPS, kv_head));
}

struct FourWords { w0: vec4<u32>, w1: vec4<u32>, w2: vec4<u32>, w3: vec4<u32> }

fn load_keys(at: vec4<u32>, place: u32) -> FourWords {
  return FourWords(key_octet(at.x, place), key_octet(at.y, place), key_octet(at.z, place), key_octet(at.w, place));
}

fn load_values(at: vec4<u32>, place: u32) -> FourWords {
  return FourWords(
    value_octet(at.x, place), value_octet(at.y, place), value_octet(at.z, place), value_octet(at.w, place));
}

// To what f16 holds, nearest even. By bits, since a driver may drop a round trip through f16.
fn as_f16(x: vec4<f32>) -> vec4<f32> {
  let bits = bitcast<vec4<u32>>(x);
  let even = (bits >> vec4<u32>(13u)) & vec4<u32>(1u);
  return bitcast<vec4<f32>>((bits + vec4<u32>(0xfffu) + even) & vec4<u32>(0xffffe000u));
}

fn times(x: Eight, factor: f32) -> Eight { return Eight(x.lo * factor, x.hi * factor); }

fn octet(base: u32, part: u32) -> Eight { // as projected
  let i = base / 4u + 2u * min(part, OCTETS - 1u);
  return Eight(qk[i], qk[i + 1u]);
}

fn product(a: Eight, b: Eight) -> f32 { return dot(a.lo, b.lo) + dot(a.hi, b.hi); }

alias Score = Each;
#include "include/${score}.wgsl"

fn scores_of(q: Octets, k: Eight) -> Each { return capped(joined_parts(products(q, k))); }

// A query head as it attends; lanes past the head get zeros by their scale.
fn query_of(x: Eight, part: u32, lane: u32, angles: Angles, scale: f32) -> Eight {
  return times(rotated(normed(x, part, false), part, lane, angles), scale);
}

// sum * shrink and four keys' values by their weights, of one head.
fn weighted(sum: Eight, shrink: f32, v0: Eight, v1: Eight, v2: Eight, v3: Eight, w: vec4<f32>) -> Eight {
  return Eight(
    sum.lo * shrink + v0.lo * w.x + v1.lo * w.y + v2.lo * w.z + v3.lo * w.w,
    sum.hi * shrink + v0.hi * w.x + v1.hi * w.y + v2.hi * w.z + v3.hi * w.w);
}

fn keep_sum(head: u32, joint: u32, subgroup: u32, part: u32, sum: Eight) {
  if (joint == head % JOINED && part < OCTETS) {
    let at = (head * SUBGROUPS + subgroup) * WORDS + 2u * part;
    sums[at] = sum.lo;
    sums[at + 1u] = sum.hi;
  }
}

// Of four subgroups; some twice, where there are fewer.
fn most_of_four(s: u32) -> Each {
  return max(
    max(most_parts[s % SUBGROUPS], most_parts[(s + 1u) % SUBGROUPS]),
    max(most_parts[(s + 2u) % SUBGROUPS], most_parts[(s + 3u) % SUBGROUPS]));
}

fn total_of_four(s: u32) -> Each {
  return (total_parts[s % SUBGROUPS] + total_parts[(s + 1u) % SUBGROUPS])
    + (total_parts[(s + 2u) % SUBGROUPS] + total_parts[(s + 3u) % SUBGROUPS]);
}

fn sum_of_four(at: u32) -> Kv {
  return (sums[at] + sums[at + WORDS]) + (sums[at + 2u * WORDS] + sums[at + 3u * WORDS]);
}

@compute @workgroup_size(WG)
fn attention_decode_subgroups(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32
) {
  // Reads that wait for no other come first, and before any branch.
  let row = group.z;
  let rows = count[0];
  let context = u32(context_lens[row]);
  let heads_each = params.num_heads / params.num_kv_heads;
  let kv_head = group.y % params.num_kv_heads;
  let first = group.y / params.num_kv_heads * HEADS_TOGETHER; // within the kv head's query heads
  let first_head = kv_head * heads_each + first;
  let num_heads = min(HEADS_TOGETHER, heads_each - first);
  let part = lane % PARTS;
  let own = lane / PARTS; // this lane's group
  let place = min(part, OCTETS - 1u);
  let projected = projected_heads(row * params.qk_width + first_head * HEAD_DIM, num_heads, part);
  let projected_key = octet(row * params.qk_width + (params.num_heads + kv_head) * HEAD_DIM, part);
  let v_at = (row * params.v_width + params.v_column + kv_head * HEAD_DIM) / 4u + 2u * place;
  let projected_value = Eight(v[v_at], v[v_at + 1u]);
  let share = share_of(group.x, context);
  let begin = select(share.begin, 0u, WHOLE);
  let begin_row = slot_row(row, begin, kv_head);
  let first_rows = rows_of(row, begin + own, kv_head);
  if (row >= rows || group.x >= share.live) { return; }

  let newest = context - 1u;
  let has_new = group.x + 1u == share.live; // the last split
  let end = min(share.end, newest); // of the keys that the cache holds
  let some = vec4<u32>(octet_at(begin_row, place));
  let apart = vec4<u32>(0u, GROUPS, 2u * GROUPS, 3u * GROUPS);
  let key_rows = select(some, first_rows + vec4<u32>(octet_at(0u, place)), vec4<u32>(begin + own) + apart < vec4<u32>(end));
  var keys = load_keys(key_rows, place);
  var values = load_values(key_rows, place);

  let angles = angles_of(part, newest);
  let q = queries_of(projected, part, lane, angles, select(0.0, params.scale * query_factor(newest), part < OCTETS));
  var most = Each(NO_SCORE);
  var total = Each();
  var sum: Octets;
  if (has_new && lane < SUBGROUP) {
    // The new key and value, as the cache will hold them: whole groups make them, the first one takes and stores them.
    let new_key = fresh_of(rotated(normed(projected_key, part, true), part, lane, angles), part);
    let new_value = fresh_of(projected_value, part);
    let score = scores_of(q, fresh_value(new_key));
    if (own == 0u) {
      most = score;
      total = Each(1.0);
      sum = octets_of(fresh_value(new_value));
      if (first == 0u && part < OCTETS) {
        let at = slot_row(row, newest, kv_head);
        store_key(at, part, new_key);
        store_value(at, part, new_value);
      }
    }
  }

  for (var tile = begin; tile < end; tile += 4u * GROUPS) {
    let key = vec4<u32>(tile + own) + apart;
    let more = tile + 4u * GROUPS < end;
    var next = vec4<u32>();
    if (more) {
      let after = rows_of(row, key.x + 4u * GROUPS, kv_head) + vec4<u32>(octet_at(0u, place));
      next = select(some, after, key + vec4<u32>(4u * GROUPS) < vec4<u32>(end));
    }
    let none = Each(NEG_LARGE);
    let s0 = select(none, scores_of(q, unpacked(keys.w0)), key.x < end);
    let s1 = select(none, scores_of(q, unpacked(keys.w1)), key.y < end);
    let s2 = select(none, scores_of(q, unpacked(keys.w2)), key.z < end);
    let s3 = select(none, scores_of(q, unpacked(keys.w3)), key.w < end);
    if (more) { keys = load_keys(next, place); }
    let now = max(most, max(max(s0, s1), max(s2, s3)));
    let shrink = exp2(most - now);
    most = now;
    let w0 = exp2(s0 - now);
    let w1 = exp2(s1 - now);
    let w2 = exp2(s2 - now);
    let w3 = exp2(s3 - now);
    total = total * shrink + ((w0 + w1) + (w2 + w3));
    let a = unpacked(values.w0);
    let b = unpacked(values.w1);
    let c = unpacked(values.w2);
    let d = unpacked(values.w3);
    sum = add_values(sum, shrink, a, b, c, d, array<Each, 4>(w0, w1, w2, w3));
    if (more) { values = load_values(next, place); }
  }

  // Subgroups first, then the workgroup: written out for up to sixteen, since loops take longer than these sums.
  let subgroup = lane / SUBGROUP;
  let joint = own % JOINED;
  let most_joined = most_joined_groups(most);
  if (lane % SUBGROUP == 0u) { most_parts[subgroup] = most_joined; }
  workgroupBarrier();
  var most_all = most_of_four(0u);
  if (SUBGROUPS > 4u) { most_all = max(most_all, most_of_four(4u)); }
  if (SUBGROUPS > 8u) { most_all = max(most_all, max(most_of_four(8u), most_of_four(12u))); }
  for (var s = 16u; s < SUBGROUPS; s += 4u) { most_all = max(most_all, most_of_four(s)); }
  let factor = exp2(most - most_all);
  let total_joined = joined_groups(total * factor);
  if (lane % SUBGROUP == 0u) { total_parts[subgroup] = total_joined; }
  keep_sums(sum, factor, joint, subgroup, part);
  workgroupBarrier();
  var total_all = total_parts[0];
  if (SUBGROUPS == 2u) { total_all += total_parts[1u % SUBGROUPS]; }
  if (SUBGROUPS > 2u) { total_all = total_of_four(0u); }
  if (SUBGROUPS > 4u) { total_all += total_of_four(4u); }
  if (SUBGROUPS > 8u) { total_all += total_of_four(8u) + total_of_four(12u); }
  for (var s = 16u; s < SUBGROUPS; s += 4u) { total_all += total_of_four(s); }
  let head_row = row * params.num_heads + first_head;
  for (var i = lane; i < num_heads * WORDS; i += WG) {
    let column = i / WORDS;
    let w = i % WORDS;
    let at = column * SUBGROUPS * WORDS + w;
    var value = sums[at];
    if (SUBGROUPS == 2u) { value += sums[at + WORDS]; }
    if (SUBGROUPS > 2u) { value = sum_of_four(at); }
    if (SUBGROUPS > 4u) { value += sum_of_four(at + 4u * WORDS); }
    if (SUBGROUPS > 8u) { value += sum_of_four(at + 8u * WORDS) + sum_of_four(at + 12u * WORDS); }
    for (var s = 16u; s < SUBGROUPS; s += 4u) { value += sum_of_four(at + s * WORDS); }
    attended(value, column, w, head_row, group.x, of_head(most_all, column), of_head(total_all, column));
  }
  finish_attended(head_row, num_heads, lane);
}
