# How gatemix and its C tests are compiled: target gatemix_flags, list gatemix_sanitize_flags.
set(gatemix_sanitize_flags "")
if(GATEMIX_SANITIZE)
  set(gatemix_sanitize_flags -fsanitize=${GATEMIX_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
endif()

add_library(gatemix_flags INTERFACE)
target_compile_features(gatemix_flags INTERFACE c_std_11)
target_compile_options(
  gatemix_flags
  INTERFACE -std=c11
            -fno-fast-math # results are fixed to the bit
            -ffp-contract=off
            -Wall
            -Wextra
            -Wconversion
            -Wsign-conversion
            -Wshadow
            -Wstrict-prototypes
            -Wmissing-prototypes
            -Wundef
            -pedantic
            $<$<BOOL:${GATEMIX_WERROR}>:-Werror>
            ${gatemix_sanitize_flags})
