// How OpenMP's workers wait, which the library reads from the environment before main.
#pragma once

namespace headrace::cli {

// Unless the environment already says how OpenMP waits: starts this program again, in place, with
// OMP_WAIT_POLICY=passive. Spinning workers would hold the cores that the optimizer's and the I/O
// threads take turns at; a step of a small model took up to 25 times as long on a busy machine.
// Returns when there is nothing to change, or when the system does not let it.
void adopt_passive_openmp_waits(char** arguments);

}  // namespace headrace::cli
