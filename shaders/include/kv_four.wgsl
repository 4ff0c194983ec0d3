// Kv, four dims of a head at a time, as attention kernels compute with them. HEAD_DIM is a multiple of 4.
// KvFour is four Kv side by side (columns). Columns being keys or queries, transpose(k) * q is their dot products.
alias Kv = vec4<f32>;
alias KvFour = mat4x4<f32>;
const KV_DIMS = 4u;

fn kv_from(a: f32, b: f32, c: f32, d: f32) -> Kv { return Kv(a, b, c, d); }

// sum + the dot products of a query with four keys; k is transpose(keys).
fn kv_dot(sum: vec4<f32>, k: mat4x4<f32>, q: Kv) -> vec4<f32> {
  return fma(k[0], vec4<f32>(q.x), fma(k[1], vec4<f32>(q.y), fma(k[2], vec4<f32>(q.z), fma(k[3], vec4<f32>(q.w), sum))));
}
