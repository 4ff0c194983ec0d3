// How attention kernels read the KV cache and activations: Kv, two dims at a time, for any even HEAD_DIM.
// See kv_wide.wgsl.
alias KvWord = u32;
alias Kv = vec2<f32>;
alias KvFour = mat4x2<f32>;
const KV_DIMS = 2u;

fn kv_unpack(word: KvWord) -> Kv { return unpack2x16float(word); }
