// Embedding in C++: handles in unique_ptr, errors as exceptions, batches from a loader, evaluation.
#include <dp/dp.h>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace {
template <class T, void (*Free)(T *)> struct freer {
    void operator()(T *p) const { Free(p); }
};
void close_engine(dp_engine *e) { dp_engine_close(e, nullptr); }
using config = std::unique_ptr<dp_config, freer<dp_config, dp_config_free>>;
using graph = std::unique_ptr<dp_graph, freer<dp_graph, dp_graph_free>>;
using data = std::unique_ptr<dp_data, freer<dp_data, dp_data_close>>;
using engine = std::unique_ptr<dp_engine, freer<dp_engine, close_engine>>;
using loader = std::unique_ptr<dp_loader, freer<dp_loader, dp_loader_close>>;

void check(dp_status status, const dp_error &err)
{
    if (status) throw std::runtime_error(err.text);
}

void run()
{
    const int samples = 600, inputs = 12;
    std::mt19937 random(1);
    std::normal_distribution<float> noise(0, .5f);
    std::vector<float> x(samples * inputs);
    std::vector<std::uint8_t> y(samples);
    for (int i = 0; i < samples; i++) {
        y[i] = static_cast<std::uint8_t>(i % 3);
        for (int k = 0; k < inputs; k++) x[i * inputs + k] = noise(random) + (k % 3 == y[i] ? 1.f : 0.f);
    }

    dp_error err;
    config c(dp_config_new(nullptr, nullptr));
    graph net(dp_graph_new());
    for (auto &s : {std::pair<const char *, const char *>{"devices.use", "cpu:0,cpu:1,cpu:2"}, {"devices.threads", "1"}, {"data.batch_size", "50"},
                    {"loss.kind", "cross_entropy"}, {"optimizer.kind", "adamw"}, {"optimizer.lr", "0.01"}})
        dp_config_set(c.get(), s.first, s.second);
    dp_graph_text(net.get(), "[model]\ninput = 12\nfc1 = linear out=16 | gelu\nfc2 = linear out=3\n");
    check(dp_graph_finish(net.get(), &err), err);

    dp_engine *e;
    check(dp_engine_open(&e, net.get(), c.get(), &err), err);
    engine owner(e);
    dp_data *d;
    check(dp_data_rows(&d, dp_view(x.data(), DP_F32, samples, inputs), dp_view(y.data(), DP_U8, samples, 1), 3, &err), err);
    data set(d);
    dp_loader *l;
    check(dp_engine_loader(e, d, 1, &l, &err), err);
    loader batches(l);

    double mean[4];
    for (double &m : mean) {
        dp_result sum = {}, r;
        for (dp_batch b;;) {
            check(dp_loader_next(l, &b, &err), err);
            if (b.x.n == 0) break; // the epoch is over
            check(dp_engine_step(e, &b, &r, &err), err);
            dp_loader_release(l, &b);
            sum.loss_sum += r.loss_sum, sum.targets += r.targets;
        }
        m = sum.loss_sum / static_cast<double>(sum.targets);
    }
    std::printf("loss %.3f, then %.3f\n", mean[0], mean[3]);
    if (!(mean[3] < .5 * mean[0])) throw std::runtime_error("the loss did not fall");
}
} // namespace

int main()
try {
    run();
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
