# Simulated CUDA, and the tests on it. Included by the Makefile behind its test rules. Where NVIDIA's headers are neither in CUDA_HOME nor
# in /usr/local/cuda, or the machine is no x86-64, one line says so and there are no such tests.
#   CUSIM_TESTS   the test programs: test/cusim/test_NAME.c, linked with the CUDA backend and with what else lies there (.c, .cu)
#   $(B)/test/libcusim.a, CUSIM_LINK   the simulator, and how it is linked
#   $(B)/sim/%.cu.o, $(B)/sim/%.o   a .cu file compiled as C++, a .c file with CUDA's headers
CUSIM_INCLUDE := $(firstword $(foreach d,$(CUDA_HOME) /usr/local/cuda,$(if $(wildcard $(d)/include/cublasLt.h),$(d)/include)))
CUDNN_INCLUDE := $(firstword $(foreach d,$(if $(CUDNN),$(CUDNN)/include) $(CUSIM_INCLUDE),$(if $(wildcard $(d)/cudnn.h),$(d))))
ifeq ($(and $(CUSIM_INCLUDE),$(CUDNN_INCLUDE),$(filter x86_64,$(shell uname -m))),)
$(info skipped: tests on simulated GPUs, which want CUDA's and cuDNN's headers in CUDA_HOME and an x86-64)
CUSIM_TESTS =
cuda-coverage:
	@echo "0 passed, 0 failed, 1 skipped"
else
ifeq ($(origin CXX),default)
CXX = g++
endif
CUSIM_I = -isystem $(CUSIM_INCLUDE) $(if $(filter-out $(CUSIM_INCLUDE),$(CUDNN_INCLUDE)),-isystem $(CUDNN_INCLUDE))
# Tests run where they are built: kernels call fmaf often, and that is one instruction on most machines. It rounds the same.
CUSIM_CPU := $(shell grep -m1 '^flags' /proc/cpuinfo | grep -qw fma && grep -qwm1 avx2 /proc/cpuinfo && echo -march=x86-64-v3)
CUSIM_CXX = -std=c++17 $(CUSIM_CPU) -pthread -fPIC -MMD -MP -Wall -Wextra -Itest/cusim/simrt $(CUSIM_I)
# The simulator itself is never instrumented: see internal.h.
CUSIM_OBJ = $(patsubst %.cpp,$(B)/sim/%.o,$(wildcard test/cusim/*.cpp))
$(CUSIM_OBJ): $(B)/sim/%.o: %.cpp
	@mkdir -p $(@D)
	@echo "  c++ $<"
	$(Q)$(CXX) $(CUSIM_CXX) -O2 -g -ffp-contract=off $(if $(findstring thread,$(SAN)),-DCUSIM_TSAN) -c -o $@ $<
$(B)/test/libcusim.a: $(CUSIM_OBJ)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^
# Whole: the backend finds the driver's functions by dlsym in the program.
CUSIM_LINK = -Wl,--whole-archive $(B)/test/libcusim.a -Wl,--no-whole-archive -Wl,--export-dynamic-symbol='cu*' \
    -Wl,--export-dynamic-symbol='nvml*' -ldl

# Kernels as C++: rounding as without fused multiply-add, so that results that must be the CPU's bytes are.
$(B)/sim/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  c++ $<"
	$(Q)$(CXX) $(CUSIM_CXX) -ffp-contract=off -Wno-unknown-pragmas $(CFLAGS) $(SAN) $(if $(filter nn/cuda/%,$<),$(COVER)) -x c++ -c -o $@ $<
# What a test defines can be found by dlsym, as the driver's functions are.
$(B)/sim/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $< (simulated CUDA)"
	$(Q)$(CC) $(ALL_CFLAGS) $(if $(filter test/%,$<),-fvisibility=default,$(COVER)) $(CUSIM_I) -DDP_CUDA_ARCHS=75,80 -DDP_CUDA_PTX=75 -c -o $@ $<

CUSIM_BACKEND = $(patsubst %,$(B)/sim/%.o,$(basename $(wildcard nn/cuda/*.c)) $(wildcard nn/cuda/*.cu))
$(B)/test/libdpcuda-sim.a: $(CUSIM_BACKEND)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^
CUSIM_TEST_C = $(wildcard test/cusim/test_*.c)
CUSIM_TESTS = $(CUSIM_TEST_C:%.c=$(B)/%)
CUSIM_HELP = $(patsubst %.c,$(B)/sim/%.o,$(filter-out $(CUSIM_TEST_C),$(wildcard test/cusim/*.c))) $(patsubst %,$(B)/sim/%.o,$(wildcard test/cusim/*.cu))
$(B)/test/libcusim-test.a: $(CUSIM_HELP)
	@mkdir -p $(@D)
	$(Q)rm -f $@ && ar rcs $@ $^
# The backend is found through a weak symbol, which takes nothing out of an archive: all tests but the simulator's own name it.
CUSIM_TAKE = -Wl,-u,dp_cuda_plugin
$(filter $(B)/test/cusim/test_cusim%,$(CUSIM_TESTS)): CUSIM_TAKE =
$(CUSIM_TESTS): $(B)/%: $(B)/sim/%.o $(B)/test/libcusim-test.a $(B)/test/libdpcuda-sim.a $(B)/test/libdp-internal.a $(B)/test/libcusim.a
	@mkdir -p $(@D)
	$(Q)$(CXX) $(CFLAGS) $(SAN) $(COVER) $(LDFLAGS) -o $@ $(CUSIM_TAKE) -Wl,--start-group $(filter-out %libcusim.a,$^) -Wl,--end-group \
	    $(CUSIM_LINK) -lcmocka $(LIBS)
# The programs over simulated GPUs: test/gpu/check.sh is rehearsed with them.
$(B)/test/cusim/dptrain: $(TOOLS_C:%.c=$(B)/obj/%.o)
$(B)/test/cusim/dpbench: $(BENCH_C:%.c=$(B)/obj/%.o)
$(B)/test/cusim/dptrain $(B)/test/cusim/dpbench: $(B)/test/libdpcuda-sim.a $(B)/test/libdp-internal.a $(B)/test/libcusim.a
	@mkdir -p $(@D)
	@echo "  ld $@"
	$(Q)$(CXX) $(CFLAGS) $(SAN) $(LDFLAGS) -o $@ $(CUSIM_TAKE) -Wl,--start-group $(filter-out %libcusim.a,$^) -Wl,--end-group \
	    $(CUSIM_LINK) -lcmocka $(LIBS)

# Lines of nn/cuda that these tests run. COVER: gcov's flags, for the backend's files alone.
COVER ?=
.PHONY: cuda-coverage cuda-coverage-programs
cuda-coverage-programs: $(CUSIM_TESTS)
cuda-coverage: ## run the tests on simulated GPUs and count the lines of nn/cuda that they run (98 % or more)
	@$(MAKE) --no-print-directory cuda-coverage-programs B=$(B)/coverage COVER=--coverage CFLAGS="-O2 -g"
	@B=$(B)/coverage DP_SCALE=$${DP_SCALE:-short} test/cusim/coverage $(CUSIM_TEST_C:%.c=$(B)/coverage/%)
.SECONDARY: $(CUSIM_TEST_C:%.c=$(B)/sim/%.o)
-include $(patsubst %.o,%.d,$(CUSIM_OBJ) $(CUSIM_BACKEND) $(CUSIM_HELP) $(CUSIM_TEST_C:%.c=$(B)/sim/%.o))
endif
