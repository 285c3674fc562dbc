"""The whole system except Ray and HTTP in one process, on virtual time, from one seed."""
