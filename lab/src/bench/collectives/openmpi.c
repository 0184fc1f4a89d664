/* Times all-reduces of an MPI. argv = mebibytes to move for each size, then the sizes in bytes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    long budget = atol(argv[1]) << 20;
    for (int which = 2; which < argc; which++) {
        long size = atol(argv[which]), count = size / 4, repetitions = budget / size;
        repetitions = repetitions < 5 ? 5 : repetitions > 500 ? 500 : repetitions;
        float *data = malloc(size);
        double *seconds = malloc(repetitions * sizeof(double));
        for (long repetition = -3; repetition < repetitions; repetition++) {
            for (long i = 0; i < count; i++) data[i] = 0.5f;
            double start = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (repetition >= 0) seconds[repetition] = MPI_Wtime() - start;
        }
        qsort(seconds, repetitions, sizeof(double), by_value);
        if (rank == 0) printf("{\"bytes\": %ld, \"seconds\": %.9f}\n", size, seconds[repetitions / 2]);
        fflush(stdout);
        free(data);
        free(seconds);
    }
    MPI_Finalize();
    return 0;
}
