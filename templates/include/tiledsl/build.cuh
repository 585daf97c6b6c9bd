// build.cuh - switches of this build; a debug build has `#define TDSL_DEBUG` here.
#pragma once
