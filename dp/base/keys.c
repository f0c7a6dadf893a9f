/* The one table of settings: parser, `dptrain --keys`, man page and C interface read it. A key that a version does not have is an
 * unknown key, a value it does not have an unknown value. Defaults of the optimizers are PyTorch's. */
#include "config.h"
#include <float.h>

/* min, max as text for people and as numbers for the check. Whole numbers end at 2147483647 unless their row says otherwise. */
#define WITHIN(lo, hi) #lo ".." #hi, lo, hi
#define AT_LEAST(lo)   ">= " #lo, lo, 2147483647.0
#define FROM(lo)       ">= " #lo, lo, FLT_MAX
#define ABOVE_0        "> 0", FLT_MIN, FLT_MAX
#define BELOW_1        "0 <= x < 1", 0, 1 - DBL_EPSILON / 2
#define WORDS(list)    list, 0, 0

/* For a PATH, `choices` shows what it may be: words in small letters are no paths (capitals stand for anything in them), and a comma
 * says that two paths may be given. */
const dp_key_row dp_keys[] = {
    {"run.dir", DP_KEY_PATH, "", WORDS("PATH"), "",
     "run directory; default runs/NAME OF THE CONFIG with the next free suffix; relative to the working directory"},
    {"run.epochs", DP_KEY_INT, "5", AT_LEAST(1), "", "how often the training set is gone through"},
    {"run.steps", DP_KEY_INT, "0", AT_LEAST(0), "", "optimizer steps of the run instead of epochs; 0: epochs count"},
    {"run.seed", DP_KEY_INT, "1", WITHIN(0, 9007199254740992), "", "of initial weights, order and dropout"},
    {"run.deterministic", DP_KEY_FLAG, "0", WORDS("0|1"), "",
     "1: equal bytes in every run on the same devices; CPU devices always give them"},
    {"run.log_every", DP_KEY_INT, "10", AT_LEAST(0), "steps", "steps between two lines of log.jsonl; 0: none"},
    {"run.overwrite", DP_KEY_FLAG, "0", WORDS("0|1"), "", "1: a run that is already in run.dir is replaced"},
    {"run.save_every", DP_KEY_INTERVAL, "1 epoch", WORDS("N epochs | N steps | 0"), "",
     "when the state is saved; 0: at the end only"},
    {"run.snapshot_every", DP_KEY_INT, "0", AT_LEAST(0), "steps",
     "optimizer steps between two copies of the state in host memory, for devices.on_device_failure = continue; 0: none"},
    {"run.keep", DP_KEY_INT, "3", AT_LEAST(1), "files", "newest states kept"},
    {"run.resume", DP_KEY_PATH, "never", WORDS("never|auto|FILE"), "",
     "go on from a state: never, auto = the newest of run.dir, or a file"},
    {"run.init_from", DP_KEY_PATH, "", WORDS("FILE"), "", "weights to start from"},
    {"run.on_nan", DP_KEY_CHOICE, "stop", WORDS("stop|warn"), "",
     "NaN or infinity in loss or gradient: end the run, or skip the update"},
    {"run.trace", DP_KEY_CHOICE, "off", WORDS("off|step|layer"), "",
     "trace.json of the run for Perfetto: phases of every device, or also its layers; of the first 200 batches"},
    {"run.debug_sync", DP_KEY_FLAG, "0", WORDS("0|1"), "",
     "1: on GPUs, every call waits for the work that it launched, so that a failure names its layer; slow"},
    {"run.report", DP_KEY_FLAG, "0", WORDS("0|1"), "", "1: report.html in the run directory"},
    {"run.on_save_error", DP_KEY_CHOICE, "stop", WORDS("stop|warn"), "",
     "a save that fails: end the run, or go on and try at the next interval"},

    {"devices.use", DP_KEY_TEXT, "auto", WORDS("auto | all | cuda:0,cuda:1 | 0,1 | cpu:0,cpu:1"), "",
     "devices in order, the first is the master; auto: all usable GPUs, else one CPU device per core, up to 8"},
    {"devices.threads", DP_KEY_INT, "0", WITHIN(0, 1024), "",
     "threads of a CPU device; 0: its share of the cores (1 with shards)"},
    {"devices.mode", DP_KEY_CHOICE, "dp", WORDS("dp|classic|balanced|ddp"), "",
     "preset of the switches below. classic: as PyTorch's DataParallel; dp: the same shape without its waste; balanced: no "
     "device "
     "fuller or busier than another; ddp: all-reduce, an optimizer per replica"},
    {"devices.scatter", DP_KEY_CHOICE, "", WORDS("direct|master"), "",
     "how the batch gets to the devices; master: through the master. Unset, as the next five: by mode"},
    {"devices.loss", DP_KEY_CHOICE, "", WORDS("replica|master"), "",
     "where the loss is computed; master: outputs are gathered there, as PyTorch does"},
    {"devices.broadcast", DP_KEY_CHOICE, "", WORDS("on_update|always"), "",
     "update = master: when parameters go to the replicas; always: before each forward, as PyTorch does"},
    {"devices.reduce", DP_KEY_CHOICE, "", WORDS("sliced|tree|master"), "",
     "who adds the gradients: every device a slice, pairs of devices, or the master all; equal bytes"},
    {"devices.update", DP_KEY_CHOICE, "", WORDS("master|sliced|replicated"), "",
     "where the optimizer steps: on the master, on every device its slice of parameters and state, or on every device all"},
    {"devices.overlap", DP_KEY_CHOICE, "", WORDS("off|reduce|all"), "",
     "communication under backward: none, the reduction, or update and gather too (not with update = master)"},
    {"devices.shards", DP_KEY_INT, "0", WITHIN(0, 256), "",
     "S: every batch is cut in S parts whatever the number of devices, and the trained bytes are equal on 1 .. S of them"},
    {"devices.split", DP_KEY_CHOICE, "even", WORDS("even|chunk|weights|auto"), "",
     "how a batch is cut: sizes differ by at most 1; PyTorch's ceil rule; by weights; auto: by what each device was measured "
     "to do, "
     "anew every epoch, none above twice the even share"},
    {"devices.weights", DP_KEY_TEXT, "", WORDS("as 3,1"), "", "split = weights: share of each device"},
    {"devices.small_batch", DP_KEY_CHOICE, "drop", WORDS("drop|merge|error"), "",
     "a last batch too small for a batchnorm on 1 x 1 maps: leave out, join to the one before, refuse"},
    {"devices.bn_stats", DP_KEY_CHOICE, "primary", WORDS("primary|merged|sync"), "",
     "batchnorm: running statistics of the first part of a batch, as PyTorch's replica 0; of all parts by their counts; sync: "
     "normalised by the statistics of the whole batch too"},
    {"devices.bucket_mb", DP_KEY_NUMBER, "8", ABOVE_0, "MB", "size of a gradient bucket"},
    {"devices.timeout_s", DP_KEY_NUMBER, "60", ABOVE_0, "s", "a step in which nothing moves for so long has failed"},
    {"devices.on_device_failure", DP_KEY_CHOICE, "stop", WORDS("stop|continue"), "",
     "a device that fails: end the run, or go on without it from the last snapshot (run.snapshot_every)"},
    {"devices.transport", DP_KEY_CHOICE, "auto", WORDS("auto|peer|copy|host"), "",
     "how devices get at each other's memory: the fastest, measured at open (not with deterministic = 1); by kernels, by "
     "copies, "
     "or not at all; through the host. Equal bytes"},
    {"devices.check_replicas", DP_KEY_INT, "0", AT_LEAST(0), "steps",
     "every so many optimizer steps the parameters of all devices are compared by checksum; 0: never"},
    {"devices.memory_limit_mb", DP_KEY_INT, "0", AT_LEAST(0), "MB", "memory of one device; 0: no limit"},
    {"devices.conv", DP_KEY_CHOICE, "auto", WORDS("auto|direct|own"), "",
     "algorithm of convolutions; own: on GPUs the project's kernel instead of cuDNN's"},
    {"devices.graphs", DP_KEY_CHOICE, "auto", WORDS("auto|off"), "",
     "on GPUs, forward and backward launched as one CUDA graph where nothing has to come between (not with bn_stats = sync, "
     "debug_sync = 1, "
     "loss = "
     "master, run.trace = layer); off: layer by layer"},
    {"devices.tf32", DP_KEY_CHOICE, "all", WORDS("all|conv|off"), "",
     "on GPUs, products with inputs rounded to 10 bits: all, those of convolutions (PyTorch's default), none"},
    {"devices.tune", DP_KEY_CHOICE, "heuristic", WORDS("heuristic|measure"), "",
     "on GPUs, how the algorithms of convolutions and matrix products are chosen: by their library, or by trying the "
     "deterministic ones at "
     "open, once for each kind of GPU (kept in ~/.cache/dp); deterministic = 1 implies heuristic"},
    {"devices.workspace_mb", DP_KEY_INT, "0", AT_LEAST(0), "MB",
     "on GPUs, most that a library may take for one call; 0: its choice"},

    {"data.format", DP_KEY_CHOICE, "idx", WORDS("idx|csv|tokens|synthetic"), "", "what data.train is"},
    {"data.train", DP_KEY_PATH, "", WORDS("PATH|IMAGES,LABELS"), "",
     "idx: directory with the usual four names, or IMAGES,LABELS; csv, tokens: a file; gzip is read"},
    {"data.eval", DP_KEY_PATH, "", WORDS("PATH|IMAGES,LABELS|last P%"), "",
     "evaluation set, as data.train, or `last 10%` of the training set"},
    {"data.batch_size", DP_KEY_INT, "128", AT_LEAST(1), "samples", "global: of all devices together, per micro-batch"},
    {"data.accumulate", DP_KEY_INT, "1", AT_LEAST(1), "batches", "micro-batches per optimizer step"},
    {"data.workers", DP_KEY_INT, "2", WITHIN(0, 256), "threads", "loader threads; 0: batches are read between steps"},
    {"data.prefetch", DP_KEY_INT, "3", WITHIN(1, 256), "batches", "batches read ahead"},
    {"data.shuffle", DP_KEY_FLAG, "1", WORDS("0|1"), "", "a new order every epoch, by run.seed"},
    {"data.drop_last", DP_KEY_FLAG, "0", WORDS("0|1"), "", "1: a short last batch is left out of training"},
    {"data.normalize", DP_KEY_TEXT, "auto", WORDS("auto | none | MEAN/STD"), "",
     "of u8 pictures as 0..1: the training set's mean and deviation per channel; none; numbers as 0.1,0.2,0.3/0.5,0.5,0.5"},
    {"data.label", DP_KEY_TEXT, "last", WORDS("last | first | NAME"), "", "csv: column of the label"},
    {"data.window", DP_KEY_INT, "0", AT_LEAST(0), "tokens", "tokens: length of a sample; 0: the model's input"},
    {"data.vocab", DP_KEY_CHOICE, "bytes", WORDS("bytes|chars"), "", "tokens of a text: all 256 bytes, or those that occur"},
    {"data.samples", DP_KEY_INT, "8192", AT_LEAST(1), "", "synthetic: size of the training set"},
    {"data.classes", DP_KEY_INT, "", AT_LEAST(1), "",
     "synthetic: classes, 10 (tokens: 65) unless set; 16-bit token files: the vocabulary"},

    {"loss.kind", DP_KEY_CHOICE, "cross_entropy", WORDS("cross_entropy|mse"), "", "mean over targets"},
    {"loss.label_smoothing", DP_KEY_NUMBER, "0", BELOW_1, "", "cross_entropy: share of the target spread over all classes"},
    {"loss.ignore_label", DP_KEY_INT, "", WITHIN(-2147483648, 2147483647), "",
     "cross_entropy: targets of this number do not count"},

    {"optimizer.kind", DP_KEY_CHOICE, "sgd", WORDS("sgd|adam|adamw"), "", "rule"},
    {"optimizer.lr", DP_KEY_NUMBER, "", ABOVE_0, "", "learning rate; must be given"},
    {"optimizer.momentum", DP_KEY_NUMBER, "0", WITHIN(0, 1), "", "sgd"},
    {"optimizer.nesterov", DP_KEY_FLAG, "0", WORDS("0|1"), "", "sgd with momentum"},
    {"optimizer.beta1", DP_KEY_NUMBER, "0.9", BELOW_1, "", "adam, adamw"},
    {"optimizer.beta2", DP_KEY_NUMBER, "0.999", BELOW_1, "", "adam, adamw"},
    {"optimizer.eps", DP_KEY_NUMBER, "1e-8", FROM(0), "", "adam, adamw"},
    {"optimizer.weight_decay", DP_KEY_NUMBER, "", FROM(0), "", "unset: PyTorch's of the kind, 0, of adamw 0.01"},
    {"optimizer.no_decay", DP_KEY_TEXT, "", WORDS("PATTERNS"), "", "names without weight decay, as *.bias,bn*"},
    {"optimizer.freeze", DP_KEY_TEXT, "", WORDS("PATTERNS"), "", "names that are not trained"},
    {"optimizer.clip_norm", DP_KEY_NUMBER, "0", FROM(0), "", "largest norm of the whole gradient; 0: any"},
    {"optimizer.lr_base_batch", DP_KEY_NUMBER, "0", FROM(0), "samples",
     "multiplies lr by batch_size x accumulate / this; 0: lr as it is"},

    {"schedule.kind", DP_KEY_CHOICE, "constant", WORDS("constant|cosine"), "", "learning rate over optimizer steps"},
    {"schedule.warmup_steps", DP_KEY_INT, "0", AT_LEAST(0), "steps", "linear rise to lr"},
    {"schedule.min_lr", DP_KEY_NUMBER, "0", FROM(0), "", "cosine: rate of the last step"},

    {"eval.every", DP_KEY_INTERVAL, "1 epoch", WORDS("N epochs | N steps | 0"), "",
     "when the evaluation set is gone through; 0: at the end only"},
    {"eval.batch_size", DP_KEY_INT, "64", AT_LEAST(1), "samples",
     "rows of one forward pass in evaluation, whatever the number of devices"},
};
const int dp_n_keys = (int)(sizeof dp_keys / sizeof *dp_keys);
