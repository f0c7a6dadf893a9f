# dp: build, test, install. Everything is made under build/ (B=DIR for another place); V=1 shows the commands.
# One library, the programs over it, and the tests, which link the same objects with internal names visible.
B ?= build
V ?= 0
PREFIX ?= /usr/local
DESTDIR ?=
ifeq ($(origin CC),default)
CC = gcc
endif
Q := $(if $(filter 0,$(V)),@,)
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2) --output-sync=target
endif

CFLAGS ?= -O2 -g
SAN ?= # of the sanitizer builds below
WARN = -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -pthread -fPIC -fvisibility=hidden -MMD -MP $(WARN) $(CFLAGS) $(SAN)
LIBS = -ldnnl -lgomp -lcjson -lz -lm -pthread
VERSION = $(shell sed -n 's/.*DP_VERSION_TEXT "\(.*\)"/\1/p' dp/base/base.h)

# What the sources need, as Debian and Ubuntu name it.
PACKAGES = gcc libc6-dev make pkg-config libdnnl-dev zlib1g-dev libcjson-dev libcmocka-dev

# ---- the library ----
SRC = $(wildcard dp/base/*.c dp/group/*.c dp/engine/*.c dp/train/*.c nn/*.c nn/ops/*.c nn/cpu/*.c data/*.c)
OBJ = $(SRC:%.c=$(B)/obj/%.o)
# Vector loops: the same files once per instruction set, -O3; never -ffast-math (a library must not change rounding modes).
VEC = $(wildcard nn/cpu/vec/*.c)
ISAS = base v3 v4
ISA_base =
ISA_v3 = -march=x86-64-v3
ISA_v4 = -march=x86-64-v4 -mprefer-vector-width=512
VEC_OBJ = $(foreach i,$(ISAS),$(VEC:nn/cpu/vec/%.c=$(B)/obj/vec-$(i)/%.o))

# ---- the programs; dpbench is made where its source is; both write pages ----
PAGE_C = $(wildcard tools/page*.c tools/figures.c tools/text.c)
BENCH_ONLY_C = $(wildcard tools/dpbench*.c tools/bench*.c)
BENCH_C = $(BENCH_ONLY_C) $(PAGE_C)
TOOLS_C = $(filter-out $(BENCH_ONLY_C),$(wildcard tools/*.c))
PROGRAMS = $(B)/dptrain $(if $(BENCH_C),$(B)/dpbench)

# ---- the tests: test/*/test_NAME.c is a program, every other .c of these directories helps them ----
TEST_DIRS = unit cases late
TEST_C = $(wildcard $(TEST_DIRS:%=test/%/test_*.c))
HELP_C = $(filter-out $(TEST_C),$(wildcard $(TEST_DIRS:%=test/%/*.c)))
TESTS = $(TEST_C:%.c=$(B)/%)
TEST_SH = $(wildcard test/cli/*.sh test/embed/*.sh)
# Set by cusim.mk, where CUDA's headers are: tests of the CUDA backend on simulated GPUs.
CUSIM_TESTS =

.PHONY: all programs demo deps test test-programs test-long test-asan test-tsan test-fresh bench goldens install uninstall format lint clean help
all: programs cuda ## build library, programs and, where nvcc is, the CUDA backend (the default)
programs: $(B)/libdp.a $(PROGRAMS)

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $<"
	$(Q)$(CC) $(ALL_CFLAGS) -c -o $@ $<
define vec_rule
$(B)/obj/vec-$(1)/%.o: nn/cpu/vec/%.c
	@mkdir -p $$(@D)
	@echo "  cc $$< ($(1))"
	$(Q)$(CC) $(ALL_CFLAGS) -O3 -fno-math-errno -fno-trapping-math $(ISA_$(1)) -DDP_ISA=$(1) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call vec_rule,$(i))))

# One relocatable object with hidden symbols made local: only dp_ names of the public headers stay global.
$(B)/libdp.a: $(OBJ) $(VEC_OBJ)
	@echo "  ar $@"
	$(Q)ld -r -o $(B)/dp.o $^ && objcopy --localize-hidden $(B)/dp.o && rm -f $@ && ar rcs $@ $(B)/dp.o
# For the tests: the same objects as they are.
$(B)/test/libdp-internal.a: $(OBJ) $(VEC_OBJ) $(HELP_C:%.c=$(B)/obj/%.o)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcsT $@ $^

$(B)/dptrain: $(TOOLS_C:%.c=$(B)/obj/%.o) $(B)/libdp.a
	@echo "  ld $@"
	$(Q)$(CC) $(CFLAGS) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)
$(B)/dpbench: $(BENCH_C:%.c=$(B)/obj/%.o) $(B)/libdp.a
	@echo "  ld $@"
	$(Q)$(CC) $(CFLAGS) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)
$(TESTS): $(B)/%: $(B)/obj/%.o $(B)/test/libdp-internal.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(SAN) $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)
.SECONDARY: $(TEST_C:%.c=$(B)/obj/%.o)

include nn/cuda/cuda.mk test/cusim/cusim.mk

demo: ## install what is missing, build, train LeNet on two CPU devices (under a minute)
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory programs
	$(B)/dptrain tools/configs/lenet.ini devices.use=cpu:0,cpu:1 run.dir=runs/demo run.overwrite=1

deps: ## install the packages that are missing (Debian, Ubuntu; root or sudo)
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q '^install ok installed' || echo $$p; done); \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null || { echo "Please install what these Debian packages hold:" $$missing; exit 1; }; \
	root=; [ "$$(id -u)" = 0 ] || root=sudo; \
	[ -z "$$root" ] || command -v sudo >/dev/null || { echo "Not root, and no sudo: please have installed:" $$missing; exit 1; }; \
	$$root apt-get update -qq && $$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing

test-programs: programs $(TESTS) $(CUSIM_TESTS)
test: test-programs ## build and run every test (DP_SCALE=short|full); the last line counts
	@B=$(B) CC="$(CC)" DP_SCALE=$${DP_SCALE:-short} test/run $(TESTS) $(CUSIM_TESTS) $(TEST_SH)
test-long: ## the same with whole networks and large grids
	@DP_SCALE=full $(MAKE) --no-print-directory test
test-asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer, leaks included
	@ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 DP_SANITIZER=asan \
	$(MAKE) --no-print-directory test B=$(B)/asan CFLAGS="-O1 -g -fno-omit-frame-pointer" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
test-tsan: ## the tests under ThreadSanitizer (one OpenMP thread a device: libgomp is not instrumented)
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1:suppressions=$(CURDIR)/test/tsan.supp OMP_NUM_THREADS=1 DP_SANITIZER=tsan \
	$(MAKE) --no-print-directory test B=$(B)/tsan CFLAGS="-O1 -g" SAN=-fsanitize=thread
test-fresh: ## the README's commands on a bare Debian in a folder (root, debootstrap; DEBIAN=12|13)
	@test/fresh/run $(DEBIAN)

# Whole programs that measure what dpbench does not: they link the library with internal names visible.
BENCH_PROGRAMS = $(B)/bench/step_cost $(B)/bench/modes
$(BENCH_PROGRAMS): $(B)/%: $(B)/obj/%.o $(patsubst %,$(B)/obj/tools/%.o,bench_case bench_peak figures text) $(B)/test/libdp-internal.a
	@mkdir -p $(@D)
	@echo "  ld $@"
	$(Q)$(CC) $(CFLAGS) $(SAN) $(LDFLAGS) -o $@ $^ $(LIBS)
bench: all $(BENCH_PROGRAMS) ## measure; PY=PYTHON compares with the torch of that Python
	@B=$(B) bench/run $(if $(PY),--python $(PY))
goldens: ## make the reference values again; PY=PYTHON with torch
	$(or $(PY),python3) test/golden/make.py

HEADERS = dp/dp.h dp/base/base.h nn/nn.h data/data.h
ROOT = $(DESTDIR)$(PREFIX)
# The library is static only, so what it needs stands in Libs: plain `pkg-config --libs` is enough.
install: all ## install under PREFIX (DESTDIR is put before it)
	@for p in $(PROGRAMS); do install -D -m 755 $$p $(ROOT)/bin/$${p##*/} || exit 1; done
	@for h in $(HEADERS); do install -D -m 644 $$h $(ROOT)/include/libdp/$$h || exit 1; done
	@for m in $(wildcard tools/*.1); do install -D -m 644 $$m $(ROOT)/share/man/man1/$${m##*/} || exit 1; done
	@install -D -m 644 $(B)/libdp.a $(ROOT)/lib/libdp.a
	@install -d $(ROOT)/lib/pkgconfig
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: libdp' 'Description: trains one neural network on several devices in one process' \
	    'Version: $(VERSION)' 'Cflags: -I$${prefix}/include/libdp' 'Libs: -L$${prefix}/lib -ldp $(LIBS)' > $(ROOT)/lib/pkgconfig/libdp.pc
uninstall: ## remove what install put there
	@rm -f $(foreach p,dptrain dpbench,$(ROOT)/bin/$(p) $(ROOT)/share/man/man1/$(p).1)
	@rm -rf $(ROOT)/lib/libdp.a $(ROOT)/lib/pkgconfig/libdp.pc $(ROOT)/include/libdp

C_FILES = $(wildcard $(foreach d,dp nn data tools test,$(d)/*.[ch] $(d)/*/*.[ch] $(d)/*/*/*.[ch]))
format: ## bring all C files into the project's format
	@clang-format -i $(C_FILES)
lint: ## check the format and run cppcheck, as far as they are installed
	@if command -v clang-format >/dev/null; then clang-format --dry-run -Werror $(C_FILES); else echo "skipped: no clang-format"; fi
	@if command -v cppcheck >/dev/null; then cppcheck -q --std=c11 --error-exitcode=1 --inline-suppr --suppress=missingIncludeSystem --suppress=invalidPointerCast \
	    --enable=warning,portability -DDP_ISA=base $(SRC) $(TOOLS_C) $(BENCH_C); else echo "skipped: no cppcheck"; fi
clean: ## remove everything that was built
	@rm -rf $(B)
help: ## show this
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r t h; do printf '  %-12s %s\n' $$t "$$h"; done

-include $(patsubst %.o,%.d,$(OBJ) $(VEC_OBJ) $(patsubst %.c,$(B)/obj/%.o,$(TOOLS_C) $(BENCH_C) $(TEST_C) $(HELP_C)))
