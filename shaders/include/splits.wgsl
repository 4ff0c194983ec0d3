// How attention_decode divides a context over workgroups; attention_decode_merge needs the same numbers.
// Needs params.window, params.splits, SPLIT_TOKENS: a smaller share is not worth a workgroup of its own.

struct Share { live: u32, begin: u32, end: u32 } // splits in use; this split's positions

fn share_of(split: u32, context: u32) -> Share {
  let visible = select(context, min(context, params.window), params.window > 0u);
  let live = clamp((visible + SPLIT_TOKENS - 1u) / SPLIT_TOKENS, 1u, params.splits);
  let size = (visible + live - 1u) / live;
  let begin = min(context, context - visible + split * size);
  return Share(live, begin, min(context, begin + size));
}
