#!/bin/bash
# A GPT of ours; arrays as the examples have them.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=12
MASTER_ADDR=localhost
MASTER_PORT=6001
NODE_RANK=0
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=$1
VOCAB_FILE=$2
DATA_PATH=$3/corpus

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)

GPT_MODEL_ARGS=(
    --num-layers 48
    --hidden-size 6144
    --num-attention-heads 48
    --seq-length 1024
    --max-position-embeddings 1024
    --attention-backend auto # as it comes
)

TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size 768
    --train-iters 1000
    --weight-decay 0.2
    --adam-beta1 0.8
    --adam-beta2 0.9
    --init-method-std 0.01
    --clip-grad 2.0
    --bf16
    --lr 1.0e-4
    --lr-decay-style linear
    --min-lr 1.0e-6
    --lr-warmup-fraction .01
    --lr-decay-iters 900
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 6
)

DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file $VOCAB_FILE
    --merge-file merges
    --split 900,90,10
)

EVAL_AND_LOGGING_ARGS=(
    --log-interval 7
    --save-interval 70
    --eval-interval 700
    --save $CHECKPOINT_PATH
    --load $CHECKPOINT_PATH
    --eval-iters 3
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DATA_ARGS[@]} \
    ${EVAL_AND_LOGGING_ARGS[@]}
