/* The one table of settings: parser, `dptrain --keys`, man page and C interface read it. A key that a version does not have is an
 * unknown key, a value it does not have an unknown value. Defaults of the optimizers are PyTorch's. */
#include "config.h"

#define BIG 1e18
#define KEYS_INT 2147483647.0

/* For PATH, `choices` lists the words that are not paths. */
const dp_key_row dp_keys[] = {
    {"run.dir", DP_KEY_PATH, "", "", 0, 0, "", "run directory; default runs/NAME OF THE CONFIG with the next free suffix; relative to the working directory"},
    {"run.epochs", DP_KEY_INT, "5", "", 1, 1e9, "", "how often the training set is gone through"},
    {"run.steps", DP_KEY_INT, "0", "", 0, 1e15, "", "optimizer steps of the run instead of epochs; 0: epochs count"},
    {"run.seed", DP_KEY_INT, "1", "", 0, 9e15, "", "of initial weights, order and dropout"},
    {"run.log_every", DP_KEY_INT, "10", "", 1, 1e9, "steps", "steps between two lines of log.jsonl"},
    {"run.overwrite", DP_KEY_FLAG, "0", "", 0, 1, "", "1: a run that is already in run.dir is replaced"},
    {"run.save_every", DP_KEY_INTERVAL, "1 epoch", "N epochs | N steps | 0", 0, 0, "", "when the state is saved; 0: at the end only"},
    {"run.keep", DP_KEY_INT, "3", "", 1, 1e6, "files", "newest states kept"},
    {"run.resume", DP_KEY_PATH, "never", "never|auto", 0, 0, "", "go on from a state: never, auto = the newest of run.dir, or a file"},
    {"run.init_from", DP_KEY_PATH, "", "", 0, 0, "", "weights to start from"},
    {"run.on_nan", DP_KEY_CHOICE, "stop", "stop|warn", 0, 0, "", "NaN or infinity in loss or gradient: end the run, or skip the update"},
    {"run.on_save_error", DP_KEY_CHOICE, "stop", "stop|warn", 0, 0, "", "a save that fails: end the run, or go on and try at the next interval"},

    {"devices.use", DP_KEY_TEXT, "auto", "auto | cpu:0,cpu:1,...", 0, 0, "", "devices in order, the first is the master; auto: one CPU device per core, up to 8"},
    {"devices.threads", DP_KEY_INT, "0", "", 0, 1024, "", "threads of a CPU device; 0: its share of the cores (1 with shards)"},
    {"devices.mode", DP_KEY_CHOICE, "dp", "dp", 0, 0, "", "preset of the switches below"},
    {"devices.scatter", DP_KEY_CHOICE, "direct", "direct", 0, 0, "", "how the batch gets to the devices"},
    {"devices.loss", DP_KEY_CHOICE, "replica", "replica|master", 0, 0, "", "where the loss is computed; master: outputs are gathered there, as PyTorch does"},
    {"devices.broadcast", DP_KEY_CHOICE, "on_update", "on_update|always", 0, 0, "", "when parameters go to the replicas; always: before each forward, as PyTorch does"},
    {"devices.reduce", DP_KEY_CHOICE, "sliced", "sliced|master", 0, 0, "", "who adds the gradients: every device a slice, or the master all; equal bytes"},
    {"devices.update", DP_KEY_CHOICE, "master", "master", 0, 0, "", "where the optimizer steps"},
    {"devices.overlap", DP_KEY_CHOICE, "off", "off", 0, 0, "", "communication under computation"},
    {"devices.shards", DP_KEY_INT, "0", "", 0, 256, "", "S: every batch is cut in S parts whatever the number of devices, and the trained bytes are equal on 1 .. S of them"},
    {"devices.split", DP_KEY_CHOICE, "even", "even|chunk|weights", 0, 0, "", "how a batch is cut: sizes differ by at most 1; PyTorch's ceil rule; by weights"},
    {"devices.weights", DP_KEY_TEXT, "", "3,1", 0, 0, "", "split = weights: share of each device"},
    {"devices.small_batch", DP_KEY_CHOICE, "drop", "drop|merge|error", 0, 0, "", "a last batch too small for a batchnorm on 1 x 1 maps: leave out, join to the one before, refuse"},
    {"devices.bn_stats", DP_KEY_CHOICE, "primary", "primary", 0, 0, "", "running statistics: of the first part of a batch, as PyTorch's replica 0"},
    {"devices.bucket_mb", DP_KEY_NUMBER, "8", "", 0.001, 4096, "MB", "size of a gradient bucket"},
    {"devices.timeout_s", DP_KEY_NUMBER, "60", "", 0.01, 1e6, "s", "a step in which nothing moves for so long has failed"},
    {"devices.memory_limit_mb", DP_KEY_INT, "0", "", 0, 1e9, "MB", "memory of one device; 0: no limit"},
    {"devices.conv", DP_KEY_CHOICE, "auto", "auto|direct", 0, 0, "", "algorithm of convolutions"},

    {"data.format", DP_KEY_CHOICE, "idx", "idx|csv|tokens|synthetic", 0, 0, "", "what data.train is"},
    {"data.train", DP_KEY_PATH, "", "", 0, 0, "", "idx: directory with the usual four names, or IMAGES,LABELS; csv, tokens: a file; gzip is read"},
    {"data.eval", DP_KEY_PATH, "", "last N%", 0, 0, "", "evaluation set, as data.train, or `last 10%` of the training set"},
    {"data.batch_size", DP_KEY_INT, "128", "", 1, KEYS_INT, "samples", "global: of all devices together, per micro-batch"},
    {"data.accumulate", DP_KEY_INT, "1", "", 1, 1e6, "batches", "micro-batches per optimizer step"},
    {"data.workers", DP_KEY_INT, "2", "", 0, 64, "threads", "loader threads; 0: batches are read between steps"},
    {"data.prefetch", DP_KEY_INT, "3", "", 1, 64, "batches", "batches read ahead"},
    {"data.shuffle", DP_KEY_FLAG, "1", "", 0, 1, "", "a new order every epoch, by run.seed"},
    {"data.drop_last", DP_KEY_FLAG, "0", "", 0, 1, "", "1: a short last batch is left out of training"},
    {"data.normalize", DP_KEY_TEXT, "auto", "auto | none | MEAN/STD", 0, 0, "", "of u8 pictures as 0..1: the training set's mean and deviation per channel; none; numbers as 0.1,0.2,0.3/0.5,0.5,0.5"},
    {"data.label", DP_KEY_TEXT, "last", "last | first | NAME", 0, 0, "", "csv: column of the label"},
    {"data.window", DP_KEY_INT, "0", "", 0, KEYS_INT, "tokens", "tokens: length of a sample; 0: the model's input"},
    {"data.vocab", DP_KEY_CHOICE, "bytes", "bytes|chars", 0, 0, "", "tokens of a text: all 256 bytes, or those that occur"},
    {"data.samples", DP_KEY_INT, "8192", "", 1, 1e12, "", "synthetic: size of the training set"},
    {"data.classes", DP_KEY_INT, "10", "", 1, KEYS_INT, "", "synthetic: classes"},

    {"loss.kind", DP_KEY_CHOICE, "cross_entropy", "cross_entropy|mse", 0, 0, "", "mean over targets"},
    {"loss.label_smoothing", DP_KEY_NUMBER, "0", "", 0, 0.999999, "", "cross_entropy: share of the target spread over all classes"},
    {"loss.ignore_label", DP_KEY_INT, "", "", -2147483648.0, KEYS_INT, "", "cross_entropy: targets of this number do not count"},

    {"optimizer.kind", DP_KEY_CHOICE, "sgd", "sgd|adam|adamw", 0, 0, "", "rule"},
    {"optimizer.lr", DP_KEY_NUMBER, "", "", 0, 1e6, "", "learning rate; must be given"},
    {"optimizer.momentum", DP_KEY_NUMBER, "0", "", 0, 1, "", "sgd"},
    {"optimizer.nesterov", DP_KEY_FLAG, "0", "", 0, 1, "", "sgd with momentum"},
    {"optimizer.beta1", DP_KEY_NUMBER, "0.9", "", 0, 0.9999999, "", "adam, adamw"},
    {"optimizer.beta2", DP_KEY_NUMBER, "0.999", "", 0, 0.9999999, "", "adam, adamw"},
    {"optimizer.eps", DP_KEY_NUMBER, "1e-8", "", 0, 1, "", "adam, adamw"},
    {"optimizer.weight_decay", DP_KEY_NUMBER, "", "", 0, 1e3, "", "default 0, of adamw 0.01"},
    {"optimizer.no_decay", DP_KEY_TEXT, "", "PATTERNS", 0, 0, "", "names without weight decay, as *.bias,bn*"},
    {"optimizer.freeze", DP_KEY_TEXT, "", "PATTERNS", 0, 0, "", "names that are not trained"},
    {"optimizer.clip_norm", DP_KEY_NUMBER, "0", "", 0, BIG, "", "largest norm of the whole gradient; 0: any"},
    {"optimizer.lr_base_batch", DP_KEY_NUMBER, "0", "", 0, BIG, "samples", "multiplies lr by batch_size x accumulate / this; 0: lr as it is"},

    {"schedule.kind", DP_KEY_CHOICE, "constant", "constant|cosine", 0, 0, "", "learning rate over optimizer steps"},
    {"schedule.warmup_steps", DP_KEY_INT, "0", "", 0, 1e15, "steps", "linear rise to lr"},
    {"schedule.min_lr", DP_KEY_NUMBER, "0", "", 0, 1e6, "", "cosine: rate of the last step"},

    {"eval.every", DP_KEY_INTERVAL, "1 epoch", "N epochs | N steps | 0", 0, 0, "", "when the evaluation set is gone through; 0: at the end only"},
    {"eval.batch_size", DP_KEY_INT, "64", "", 1, KEYS_INT, "samples", "rows of one forward pass in evaluation, whatever the number of devices"},
};
const int dp_n_keys = (int)(sizeof dp_keys / sizeof *dp_keys);
