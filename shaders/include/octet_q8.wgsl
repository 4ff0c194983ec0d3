// Octets of cached heads in q8_0, for attention_decode_subgroups, see octet_words.wgsl: a run is four lanes'.
#include "include/q8_run.wgsl"
alias KvCell = u32; // of the cache
struct Fresh { value: Eight, words: vec2<u32>, scales: u32 } // of the lane's run in the low half, of the next in the high
const KV_STRIDE = Q8_STRIDE; // cells of a head

fn octet_at(row: u32, place: u32) -> u32 { return row + 2u * place; }

fn scale_place(at: u32, place: u32) -> u32 { return at - 2u * place + Q8_WORDS + place / 8u; }
fn scale_of(pair: u32, place: u32) -> u32 { return (pair >> (place / 4u % 2u * 16u)) & 0xffffu; }

fn key_octet(at: u32, place: u32) -> vec4<u32> {
  return vec4<u32>(k_cache[at], k_cache[at + 1u], scale_of(k_cache[scale_place(at, place)], place), 0u);
}

fn value_octet(at: u32, place: u32) -> vec4<u32> {
  return vec4<u32>(v_cache[at], v_cache[at + 1u], scale_of(v_cache[scale_place(at, place)], place), 0u);
}

fn unpacked(w: vec4<u32>) -> Eight {
  let scale = unpack2x16float(w.z).x;
  return Eight(vec4<f32>(unpack4xI8(w.x)) * scale, vec4<f32>(unpack4xI8(w.y)) * scale);
}

fn fresh_of(x: Eight, part: u32) -> Fresh {
  var most = max(q8_most(x.lo), q8_most(x.hi));
  most = max(most, subgroupShuffleXor(most, 1u));
  most = max(most, subgroupShuffleXor(most, 2u));
  let inverse = q8_inverse(most);
  var pair = q8_scale(most);
  if (OCTETS > 4u) {
    let next = subgroupShuffleXor(pair, 4u);
    if (part + 4u < OCTETS) { pair |= next << 16u; }
  }
  let scale = as_f16(vec4<f32>(most / 127.0)).x;
  return Fresh(
    Eight(round(x.lo * inverse) * scale, round(x.hi * inverse) * scale),
    vec2<u32>(q8_word(x.lo, inverse), q8_word(x.hi, inverse)), pair);
}

fn fresh_value(fresh: Fresh) -> Eight { return fresh.value; }

fn store_key(row: u32, part: u32, fresh: Fresh) {
  k_cache[row + 2u * part] = fresh.words.x;
  k_cache[row + 2u * part + 1u] = fresh.words.y;
  if (part % 8u == 0u) { k_cache[row + Q8_WORDS + part / 8u] = fresh.scales; }
}

fn store_value(row: u32, part: u32, fresh: Fresh) {
  v_cache[row + 2u * part] = fresh.words.x;
  v_cache[row + 2u * part + 1u] = fresh.words.y;
  if (part % 8u == 0u) { v_cache[row + Q8_WORDS + part / 8u] = fresh.scales; }
}
