// engine.cpp - the engine as one translation unit.
#include "scheduler.cpp"
#include "barriers.cpp"
#include "shared.cpp"
#include "bulk.cpp"
#include "wgmma.cpp"
