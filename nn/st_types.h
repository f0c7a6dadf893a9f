/* Internal: names and sizes of the safetensors types, in the order of dp_st_type. */
#ifndef DP_NN_ST_TYPES_H
#define DP_NN_ST_TYPES_H
#define DP_ST_TYPE_NAMES                                                                                                       \
    {                                                                                                                          \
        "F32", "F64", "I32", "I64", "U8", "U64", "F16", "BF16"                                                                 \
    }
#define DP_ST_TYPE_SIZES                                                                                                       \
    {                                                                                                                          \
        4, 8, 4, 8, 1, 8, 2, 2                                                                                                 \
    }
#endif
