#!/bin/bash
#SBATCH --job-name=pfedsim
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@120
# A Ray cluster for the length of this job, and one pfedsim command on it. Submit with
#   sbatch docs/slurm.sh run --method pfedsim --data cifar10 --resume --out runs/a
# The folder of the run lies on a disk that all nodes share. If the job ends early, submit the same line again.
set -eu
port=${PORT:-6379}
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')  # srun hands it to all nodes
export RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname --ip-address | awk '{print $1}')
start="ray start --num-cpus=$SLURM_CPUS_PER_TASK --disable-usage-stats --block"

srun --nodes=1 --ntasks=1 -w "${nodes[0]}" $start --head --node-ip-address="$head" --port="$port" \
    --include-dashboard=false &
until RAY_ADDRESS="$head:$port" ray status > /dev/null 2>&1; do sleep 2; done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 -w "$node" $start --address="$head:$port" &
done

pfedsim "$@" --engine ray --address "$head:$port" &
driver=$!
trap 'kill -TERM $driver' TERM  # two minutes before the time limit: pfedsim stops, and can be resumed
wait $driver || wait $driver
