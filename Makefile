# dp: build, test, install. Everything is made under build/ (B=DIR for another place). V=1 shows the commands.
B ?= build
CC ?= gcc
V ?= 0
Q := $(if $(filter 0,$(V)),@,)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2) --output-sync=target
WARN = -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -pthread -fPIC -fvisibility=hidden -MMD -MP $(WARN) $(CFLAGS) $(SAN)
LIBS = -ldnnl -lgomp -lcjson -lz -lm -pthread

SRC = $(wildcard dp/base/*.c dp/group/*.c dp/engine/*.c dp/train/*.c nn/*.c nn/ops/*.c nn/cpu/*.c data/*.c)
OBJ = $(SRC:%.c=$(B)/obj/%.o)
# Vector loops: the same files once per instruction set, -O3; never -ffast-math (a library must not change rounding modes).
VEC = $(wildcard nn/cpu/vec/*.c)
ISAS = base v3 v4
ISA_base =
ISA_v3 = -march=x86-64-v3
ISA_v4 = -march=x86-64-v4 -mprefer-vector-width=512
VEC_OBJ = $(foreach i,$(ISAS),$(VEC:nn/cpu/vec/%.c=$(B)/obj/vec-$(i)/%.o))

all: $(B)/libdp.a
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
-include $(OBJ:.o=.d) $(VEC_OBJ:.o=.d)
.PHONY: all
