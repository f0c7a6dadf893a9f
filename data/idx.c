/* IDX, the format of MNIST and Fashion-MNIST: big-endian header (0, 0, type, rank, dimensions), then bytes. The file stays in
 * memory as read and the samples are rows of it. Sizes are compared with the file before anything is believed. */
#include "../dp/base/file.h"
#include "set.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TYPE_U8 = 0x08, RANK_IMAGES = 3, RANK_LABELS = 1 };

typedef struct idx_file {
    char path[PATH_MAX];
    uint8_t *data; /* whole file */
    size_t header;
    int64_t dims[RANK_IMAGES];
} idx_file;

static const char *type_name(int type)
{
    switch (type) {
    case 0x08: return "unsigned byte";
    case 0x09: return "signed byte";
    case 0x0B: return "int16";
    case 0x0C: return "int32";
    case 0x0D: return "float32";
    case 0x0E: return "float64";
    default: return "unknown";
    }
}

static dp_status check_magic(const idx_file *f, size_t bytes, int rank, dp_error *err)
{
    const uint8_t *p = f->data;
    const char *wanted = rank == RANK_IMAGES ? "images" : "labels", *other = rank == RANK_IMAGES ? "labels" : "images";
    unsigned magic = (unsigned)p[0] << 24 | (unsigned)p[1] << 16 | (unsigned)p[2] << 8 | p[3];
    if (dp_set_looks_html(p, bytes)) {
        return dp_fail(err, DP_EDATA, "%s looks like an HTML page, wanted IDX %s: download it again", f->path, wanted);
    }
    if (p[0] == 0x1F && p[1] == 0x8B) return dp_fail(err, DP_EDATA, "%s is gzip compressed twice: unpack it once", f->path);
    if (p[2] == 0 && p[3] == 0 && p[1] == TYPE_U8) {
        return dp_fail(err, DP_EDATA, "%s: magic 0x%08X has its bytes reversed: IDX headers are big-endian", f->path, magic);
    }
    if (p[0] || p[1]) {
        return dp_fail(err, DP_EDATA, "%s: magic 0x%08X, wanted %s (IDX %s of bytes)", f->path, magic,
                       rank == RANK_IMAGES ? "2051" : "2049", wanted);
    }
    if (p[2] != TYPE_U8) {
        return dp_fail(err, DP_EDATA, "%s: element type 0x%02X (%s): only IDX files of unsigned bytes (0x08) are read", f->path,
                       p[2], type_name(p[2]));
    }
    if (p[3] != rank) {
        int swapped = p[3] == RANK_LABELS || p[3] == RANK_IMAGES;
        return dp_fail(err, DP_EDATA, "%s: magic %u, wanted %d (%s)%s%s%s", f->path, magic, TYPE_U8 << 8 | rank, wanted,
                       swapped ? ": this is a file of " : "", swapped ? other : "", swapped ? "; are the two exchanged?" : "");
    }
    return DP_OK;
}

static dp_status read_idx(idx_file *f, int rank, dp_error *err)
{
    size_t bytes = 0;
    const char *wanted = rank == RANK_IMAGES ? "images" : "labels";
    f->header = 4 + 4 * (size_t)rank;
    DP_TRY(dp_file_read(f->path, 1, 0, &f->data, &bytes, err));
    if (bytes == 0) return dp_fail(err, DP_EDATA, "%s is empty, wanted IDX %s: download it again", f->path, wanted);
    if (bytes >= 4) DP_TRY(check_magic(f, bytes, rank, err));
    if (bytes < f->header) {
        return dp_fail(err, DP_EDATA, "%s has %zu bytes, the header alone of IDX %s takes %zu: the file is cut off", f->path,
                       bytes, wanted, f->header);
    }
    int64_t total = 1;
    for (int i = 0; i < rank; i++) {
        const uint8_t *p = f->data + 4 + 4 * i;
        f->dims[i] = (int64_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
        if (f->dims[i] == 0) {
            return dp_fail(err, DP_EDATA, "%s: dimension %d of its header is 0: nothing to train on", f->path, i);
        }
        if (__builtin_mul_overflow(total, f->dims[i], &total) || total > INT64_MAX - 16) {
            return dp_fail(err, DP_EDATA, "%s: the dimensions of its header overflow 64 bits: the header is broken", f->path);
        }
    }
    if ((int64_t)bytes != total + (int64_t)f->header) {
        char shape[96];
        if (rank == RANK_IMAGES) {
            snprintf(shape, sizeof shape, "%lld images of %lld x %lld", (long long)f->dims[0], (long long)f->dims[1],
                     (long long)f->dims[2]);
        } else {
            snprintf(shape, sizeof shape, "%lld labels", (long long)f->dims[0]);
        }
        return dp_fail(err, DP_EDATA, "%s has %zu bytes (unpacked), its header says %s = %lld bytes: it is %s", f->path, bytes,
                       shape, (long long)total + (long long)f->header,
                       (int64_t)bytes < total + (int64_t)f->header ? "cut off" : "too long");
    }
    return DP_OK;
}

/* PREFIX-images-idx3-ubyte in all its spellings; 1 = found, its path in f. */
static int find_in(idx_file *f, const char *dir, const char *prefix, int rank)
{
    static const char *const spellings[] = {"-", "."}, *const endings[] = {"", ".gz"};
    for (int i = 0; i < 4; i++) {
        int n = snprintf(f->path, sizeof f->path, "%s/%s-%s%sidx%d-ubyte%s", dir, prefix,
                         rank == RANK_IMAGES ? "images" : "labels", spellings[i / 2], rank, endings[i % 2]);
        if (n > 0 && (size_t)n < sizeof f->path && access(f->path, F_OK) == 0) return 1;
    }
    return 0;
}

static dp_status find_files(idx_file *images, idx_file *labels, const char *dir, int test, dp_error *err)
{
    static const char *const prefixes[][2] = {{"train", "train"}, {"t10k", "test"}};
    int have_images = 0, have_labels = 0;
    for (int i = 0; i < 2 && !(have_images && have_labels); i++) {
        const char *prefix = prefixes[test != 0][i];
        have_images = find_in(images, dir, prefix, RANK_IMAGES);
        have_labels = find_in(labels, dir, prefix, RANK_LABELS);
        if (have_images != have_labels) break;
    }
    if (have_images && have_labels) return DP_OK;
    const char *prefix = test ? "t10k" : "train";
    return dp_fail(err, DP_EIO, "%s: wanted %s-images-idx3-ubyte and %s-labels-idx1-ubyte (plain or .gz), %s not there", dir,
                   prefix, prefix,
                   have_images   ? "the labels are"
                   : have_labels ? "the images are"
                                 : "they are");
}

int dp_set_idx_has_test(const dp_config *c)
{
    idx_file f;
    struct stat st;
    const char *dir = dp_config_text(c, "data.train");
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) return 0;
    return find_in(&f, dir, "t10k", RANK_IMAGES) || find_in(&f, dir, "test", RANK_IMAGES);
}

static dp_status split_pair(idx_file *images, idx_file *labels, const dp_config *c, const char *key, dp_error *err)
{
    const char *pair = dp_config_text(c, key), *comma = strchr(pair, ',');
    if (!comma || comma == pair || !comma[1] || strchr(comma + 1, ',')) {
        return dp_fail(err, DP_EIO, "%s = %s: wanted a directory that exists, or IMAGES,LABELS", key, pair);
    }
    int a = snprintf(images->path, sizeof images->path, "%.*s", (int)(comma - pair), pair);
    int b = snprintf(labels->path, sizeof labels->path, "%s", comma + 1);
    if (a < 0 || b < 0 || (size_t)a >= sizeof images->path || (size_t)b >= sizeof labels->path) {
        return dp_fail(err, DP_EIO, "%s: a path is longer than %zu bytes", key, sizeof images->path);
    }
    return DP_OK;
}

static dp_status make_set(dp_data **d, const dp_set_request *q, idx_file *images, idx_file *labels, dp_error *err)
{
    int64_t n = images->dims[0], first, count;
    if (n != labels->dims[0]) {
        return dp_fail(err, DP_EDATA, "%s has %lld images and %s has %lld labels: every image needs its label", images->path,
                       (long long)n, labels->path, (long long)labels->dims[0]);
    }
    dp_data_info f;
    dp_set_label_rule rule;
    const uint8_t *x = images->data + images->header, *y = labels->data + labels->header;
    memset(&f, 0, sizeof f);
    dp_set_label_rule_of(&rule, q->c);
    DP_TRY(dp_set_label_scan(&rule, labels->path, y, DP_U8, n, 1, &f.classes, err));
    if (n > 1 && memcmp(y, y + 1, (size_t)n - 1) == 0) dp_log(q->c, DP_LOG_WARN, "%s: all labels are %d", labels->path, y[0]);
    DP_TRY(dp_set_part(q, n, "images", &first, &count, err));
    f.samples = count;
    f.x_rank = 3, f.x_shape[0] = 1, f.x_shape[1] = images->dims[1], f.x_shape[2] = images->dims[2];
    f.x_dtype = DP_U8, f.x_layout = DP_HWC;
    f.y_dtype = DP_U8, f.y_width = 1;
    uint8_t *own0 = images->data, *own1 = labels->data;
    images->data = labels->data = NULL;
    return dp_set_arrays(d, &f, x + first * f.x_shape[1] * f.x_shape[2], y + first, own0, own1, err);
}

dp_status dp_set_open_idx(dp_data **d, const dp_set_request *q, dp_error *err)
{
    char where[256];
    struct stat st;
    idx_file images = {.data = NULL}, labels = {.data = NULL};
    const char *path = dp_config_text(q->c, q->key);
    dp_status s;
    if (dp_config_choice(q->c, "loss.kind") == 1) {
        return dp_fail(err, DP_ECONFIG, "%s: idx files hold class numbers, loss.kind = mse wants numbers",
                       dp_config_where(q->c, "loss.kind", where, sizeof where));
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        s = find_files(&images, &labels, path, q->test_files, err);
    else
        s = split_pair(&images, &labels, q->c, q->key, err);
    if (!s) s = read_idx(&images, RANK_IMAGES, err);
    if (!s) s = read_idx(&labels, RANK_LABELS, err);
    if (!s) s = make_set(d, q, &images, &labels, err);
    free(images.data);
    free(labels.data);
    return s;
}
