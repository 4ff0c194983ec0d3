// How attention kernels read the KV cache and activations: Kv, two dims at a time, for any even HEAD_DIM.
// See kv_wide.wgsl.
alias KvWord = u32;
alias Kv = vec2<f32>;
alias KvFour = mat4x2<f32>;
const KV_DIMS = 2u;

fn kv_unpack(word: KvWord) -> Kv { return unpack2x16float(word); }
fn kv_pack(v: Kv) -> KvWord { return pack2x16float(v); }
fn kv_from(a: f32, b: f32, c: f32, d: f32) -> Kv { return Kv(a, b); }
