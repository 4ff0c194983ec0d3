// -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113
const CODES_0 = vec4<u32>(129u, 152u, 173u, 191u);
const CODES_1 = vec4<u32>(207u, 221u, 234u, 246u);
const CODES_2 = vec4<u32>(1u, 13u, 25u, 38u);
const CODES_3 = vec4<u32>(53u, 69u, 89u, 113u);
#include "include/codebook.wgsl"
