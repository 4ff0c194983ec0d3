// How attention kernels read the KV cache in q8_0: Kv, four dims at a time. A KvWord is four int8 and their scale.
#include "include/kv_four.wgsl"
#include "include/q8_run.wgsl"
alias KvWord = vec2<u32>; // four int8; f16 in the low half
alias KvCell = u32; // of the cache

fn kv_unpack(word: KvWord) -> Kv { return Kv(unpack4xI8(word.x)) * unpack2x16float(word.y).x; }
