// Octets of cached heads in f16, for attention_decode_subgroups. Needs k_cache, v_cache, Eight, OCTETS.
alias KvCell = vec4<u32>; // of the cache
alias Fresh = Eight; // what the newest token has, as the cache will hold it
const KV_STRIDE = OCTETS; // cells of a head

fn octet_at(row: u32, place: u32) -> u32 { return row + place; }
fn key_octet(at: u32, place: u32) -> vec4<u32> { return k_cache[at]; }
fn value_octet(at: u32, place: u32) -> vec4<u32> { return v_cache[at]; }

fn unpacked(w: vec4<u32>) -> Eight {
  return Eight(
    vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)), vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)));
}

fn packed(x: Eight) -> vec4<u32> {
  return vec4<u32>(
    pack2x16float(x.lo.xy), pack2x16float(x.lo.zw), pack2x16float(x.hi.xy), pack2x16float(x.hi.zw));
}

fn fresh_of(x: Eight, part: u32) -> Fresh { return Eight(as_f16(x.lo), as_f16(x.hi)); }
fn fresh_value(fresh: Fresh) -> Eight { return fresh; }
fn store_key(row: u32, part: u32, fresh: Fresh) { k_cache[row + part] = packed(fresh); }
fn store_value(row: u32, part: u32, fresh: Fresh) { v_cache[row + part] = packed(fresh); }
