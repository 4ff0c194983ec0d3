// How attention kernels read the KV cache in f16: Kv, two dims at a time, for any even HEAD_DIM.
// See kv_wide.wgsl and kv_four.wgsl.
alias KvWord = u32;
alias KvCell = KvWord;
alias Kv = vec2<f32>;
alias KvFour = mat4x2<f32>;
const KV_DIMS = 2u;

fn kv_unpack(word: KvWord) -> Kv { return unpack2x16float(word); }
fn kv_pack(v: Kv) -> KvWord { return pack2x16float(v); }
fn kv_from(a: f32, b: f32, c: f32, d: f32) -> Kv { return Kv(a, b); }

// sum + the dot products of a query with four keys; k is transpose(keys).
fn kv_dot(sum: vec4<f32>, k: mat2x4<f32>, q: Kv) -> vec4<f32> {
  return fma(k[0], vec4<f32>(q.x), fma(k[1], vec4<f32>(q.y), sum));
}
