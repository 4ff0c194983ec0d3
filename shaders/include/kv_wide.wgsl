// How attention kernels read the KV cache in f16: Kv, four dims at a time. HEAD_DIM is a multiple of 8.
#include "include/kv_four.wgsl"
alias KvWord = vec2<u32>;
alias KvCell = KvWord; // of the cache

fn kv_unpack(word: KvWord) -> Kv { return Kv(unpack2x16float(word.x), unpack2x16float(word.y)); }
fn kv_pack(v: Kv) -> KvWord { return KvWord(pack2x16float(v.xy), pack2x16float(v.zw)); }
