// Counters and faults.
#include "internal.h"
#include <cstdlib>
#include <cstring>

namespace cusim {

cusim_counters counters;
std::map<std::string, int64_t, std::less<>> &calls = *new std::map<std::string, int64_t, std::less<>>;

struct Fault {
    std::string kind;
    std::vector<std::string> field;
    int64_t left; // until it happens
    int code;
};
static auto &faults = *new std::vector<Fault>;
static auto &released = *new std::condition_variable;
static int64_t release_count;

static bool is_device(const std::string &field, int device)
{
    return field == "h" ? device == CUSIM_HOST : atoi(field.c_str()) == device;
}

cudaError_t call_fault(const char *name)
{
    for (Fault &f : faults)
        if (f.kind == "fail" && f.field[0] == name && !--f.left) return (cudaError_t)f.code;
    return cudaSuccess;
}

bool pair_fault(const char *kind, int from, int to, int *value)
{
    for (const Fault &f : faults) {
        if (f.kind != kind || !is_device(f.field[0], from) || !is_device(f.field[1], to)) continue;
        if (value) *value = f.code;
        return true;
    }
    return false;
}

bool switched(const char *kind, const char *which)
{
    for (const Fault &f : faults)
        if (f.kind == kind && f.field[0] == which) return true;
    return false;
}

int most_peers()
{
    for (const Fault &f : faults)
        if (f.kind == "peers") return atoi(f.field[0].c_str());
    return 8;
}

void wait_release(Lock &l)
{
    const int64_t before = release_count;
    while (release_count == before) released.wait(l);
}

void before_work(Lock &l, Device &d)
{
    d.started++;
    for (Fault &f : faults) {
        if ((f.kind != "die" && f.kind != "hang") || !is_device(f.field[0], d.index) || --f.left) continue;
        if (f.kind == "die") {
            kill_device(d, (cudaError_t)f.code);
            continue;
        }
        wait_release(l);
        return; // the list is another one now
    }
}

} // namespace cusim

using namespace cusim;

extern "C" void cusim_fault(const char *spec)
{
    static const struct {
        const char *kind;
        size_t fields;
        int left, code; // which field
    } kinds[] = {{"fail", 3, 1, 2},    {"die", 3, 1, 2},   {"hang", 2, 1, -1}, {"corrupt", 2, -1, -1}, {"nopeer", 2, -1, -1},
                 {"stall", 2, -1, -1}, {"slow", 3, -1, 2}, {"peers", 1, -1, -1}, {"lt", 1, -1, -1},     {"dnn", 1, -1, -1}};
    Hidden h;
    Fault f{};
    std::string rest = spec;
    std::vector<std::string> part;
    for (size_t at = 0, end; at <= rest.size(); at = end + 1) {
        end = std::min(rest.find(':', at), rest.size());
        part.push_back(rest.substr(at, end - at));
    }
    f.kind = part[0];
    f.field.assign(part.begin() + 1, part.end());
    for (const auto &k : kinds) {
        if (f.kind != k.kind || f.field.size() != k.fields) continue;
        if (k.left >= 0) f.left = atoll(f.field[(size_t)k.left].c_str());
        if (k.code >= 0) f.code = atoi(f.field[(size_t)k.code].c_str());
        if (k.left >= 0 && f.left < 1) break;
        Lock l(world);
        faults.push_back(f);
        return;
    }
    die("no such fault: %s", spec);
}

extern "C" void cusim_release(void)
{
    Hidden h;
    Lock l(world);
    faults.clear();
    release_count++;
    released.notify_all();
}

extern "C" void cusim_read(cusim_counters *c)
{
    Hidden h;
    Lock l(world);
    Visible v; // the caller's memory
    memcpy(c, &counters, sizeof *c);
}

extern "C" void cusim_reset(void)
{
    Hidden h;
    Lock l(world);
    const size_t live = offsetof(cusim_counters, live_bytes);
    memset(&counters, 0, live);
    calls.clear();
}

extern "C" int64_t cusim_calls(const char *api)
{
    Hidden h;
    Lock l(world);
    const auto c = calls.find(std::string_view(api));
    return c == calls.end() ? 0 : c->second;
}

extern "C" int cusim_has_context(int device)
{
    Hidden h;
    Lock l(world);
    return device >= 0 && (size_t)device < devices.size() && devices[(size_t)device].context;
}
