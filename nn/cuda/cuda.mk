# The CUDA backend as a plugin: $(B)/libdpcuda.so, and $(B)/libdpcuda.a for programs that want it linked in. Included by the Makefile;
# where nvcc is neither in CUDA_HOME nor on PATH, one line says so and everything else builds.
#   CUDA_ARCHS   what machine code is made for (those that this nvcc knows); PTX of the lowest serves later ones
#   CUDNN        a folder with include/ and lib/ of cuDNN 9, where it does not lie in the toolkit
CUDA_ARCHS ?= 75 80 86 89 90 100 120
NVCC ?= $(firstword $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME))) $(shell command -v nvcc 2>/dev/null))
.PHONY: cuda install-cuda uninstall-cuda
$(B)/obj/nn/cuda_plugin.o: ALL_CFLAGS += -DDP_LIBDIR='"$(PREFIX)/lib"'
install: install-cuda
uninstall: uninstall-cuda
install-cuda: # what was built
	@for f in libdpcuda.so libdpcuda.a; do [ ! -e $(B)/$$f ] || install -D -m 644 $(B)/$$f $(ROOT)/lib/$$f || exit 1; done
uninstall-cuda:
	@rm -f $(ROOT)/lib/libdpcuda.so $(ROOT)/lib/libdpcuda.a
CUDA_DIR := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDNN_HEADER := $(firstword $(wildcard $(addsuffix /cudnn.h,$(if $(CUDNN),$(CUDNN)/include,$(CUDA_DIR)/include /usr/include /usr/include/x86_64-linux-gnu))))
ifeq ($(NVCC),)
cuda: ## build the CUDA backend, if nvcc is there
	@echo "  no CUDA backend: nvcc is neither in CUDA_HOME nor on PATH"
else ifeq ($(CUDNN_HEADER),)
cuda:
	@echo "  no CUDA backend: there is $(NVCC), but no cudnn.h; CUDNN=DIR names a folder with include/ and lib/ of cuDNN 9"
else
CUDA_KNOWN := $(sort $(subst compute_,,$(shell $(NVCC) --list-gpu-arch)))
CUDA_USED := $(filter $(CUDA_KNOWN),$(CUDA_ARCHS))
CUDA_LOWEST := $(firstword $(CUDA_USED))
empty :=
comma := ,
CUDA_INCLUDE = -isystem $(CUDA_DIR)/include $(if $(CUDNN),-isystem $(CUDNN)/include)
NVFLAGS = -std=c++17 -O3 $(foreach a,$(CUDA_USED),-gencode arch=compute_$(a),code=sm_$(a)) \
    -gencode arch=compute_$(CUDA_LOWEST),code=compute_$(CUDA_LOWEST) \
    -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wshadow -Werror all-warnings $(if $(CUDNN),-isystem $(CUDNN)/include) $(CUDA_FLAGS)
# Equal to the CPU backend by bytes: no fused multiply-add.
$(foreach f,flat stats optimizer convert,$(eval NVFLAGS_$(f) = --fmad=false))

CUDA_CU = $(wildcard nn/cuda/*.cu)
CUDA_C = $(wildcard nn/cuda/*.c)
# What it needs of the library is compiled in: nothing of libdp.a can be seen from a plugin.
CUDA_BASE = $(B)/obj/dp/base/base.o $(B)/obj/dp/base/error.o $(B)/obj/dp/base/memory.o $(B)/obj/dp/base/text.o $(B)/obj/nn/cuda_driver.o
CUDA_OBJ = $(CUDA_CU:%.cu=$(B)/obj/%.cu.o) $(CUDA_C:%.c=$(B)/obj/%.o)

cuda: $(B)/libdpcuda.so $(B)/libdpcuda.a ## build the CUDA backend, if nvcc is there

$(B)/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo "  nvcc $<"
	$(Q)$(NVCC) $(NVFLAGS) $(NVFLAGS_$(basename $(notdir $<))) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(CUDA_C:%.c=$(B)/obj/%.o): ALL_CFLAGS += $(CUDA_INCLUDE)
$(B)/obj/nn/cuda/plugin.o: ALL_CFLAGS += -DDP_CUDA_ARCHS=$(subst $(empty) $(empty),$(comma),$(CUDA_USED)) -DDP_CUDA_PTX=$(CUDA_LOWEST)

# The op table on a real GPU (test/gpu/check.sh): nothing of the simulator, the plugin is loaded.
$(B)/test/gpu/test_cuda_ops: $(B)/obj/test/cusim/test_cuda_ops.o $(B)/test/libdp-internal.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -rdynamic -o $@ $^ -lcmocka $(LIBS)
CUDA_LINK = -L$(CUDA_DIR)/lib64 $(if $(CUDNN),-L$(CUDNN)/lib) -lcublasLt -l:libcudnn.so.9
$(B)/libdpcuda.so: $(CUDA_OBJ) $(CUDA_BASE) nn/cuda/exports.map
	@echo "  ld $@"
	$(Q)$(NVCC) -shared -cudart static -o $@ $(CUDA_OBJ) $(CUDA_BASE) $(CUDA_LINK) -Xlinker -z,defs,-rpath,$(CUDA_DIR)/lib64 \
	    -Xlinker --version-script=nn/cuda/exports.map
# One relocatable object in which only the table is global; to be linked with -Wl,-u,dp_cuda_plugin, cudart_static, cublasLt and cuDNN.
$(B)/libdpcuda.a: $(CUDA_OBJ) $(CUDA_BASE)
	@echo "  ar $@"
	$(Q)ld -r -o $(B)/dpcuda.o $^ && objcopy --keep-global-symbol=dp_cuda_plugin $(B)/dpcuda.o && rm -f $@ && ar rcs $@ $(B)/dpcuda.o
-include $(CUDA_CU:%.cu=$(B)/obj/%.cu.d) $(CUDA_C:%.c=$(B)/obj/%.d)
endif
