"""Arguments of Megatron-LM that change neither what a rank keeps nor what the prediction knows of a step's
time.

Names are those of github NVIDIA/Megatron-LM, megatron/training/arguments.py. An argument that is not here
and not read by `workshop.configs.formats.megatron` is refused by name. Some hide traffic behind computing,
or fuse kernels: they change a real step's time, and no number of the prediction; a person sees them listed.
"""

from __future__ import annotations

TRAINING = """
    --train-iters --train-samples --exit-* --lr --lr-* --min-lr --weight-decay* --start-weight-decay
    --end-weight-decay --adam-* --sgd-momentum --muon-* --clip-grad --seed --data-parallel-random-init
    --init-method* --decoupled-lr --decoupled-min-lr --use-checkpoint-args
    --use-checkpoint-opt_param-scheduler --override-opt_param-scheduler --no-initialization
    --use-cpu-initialization --finetune --test-mode --dataloader-type --log-* --no-log-* --tensorboard-*
    --wandb-* --eval-* --skip-train --full-validation --multiple-validation-sets --timing-*
    --no-barrier-with-level-1-timing --manual-gc* --no-manual-gc-eval --empty-unused-memory-level
    --adlr-autoresume* --calculate-per-token-loss --no-check-for-nan-in-loss-and-grad
    --check-for-spiky-loss --check-for-large-grads --train-sync-interval --iterations-to-skip
    --result-rejected-tracker-filename --disable-straggler-on-startup --straggler-* --one-logger-*
    --enable-one-logger --no-one-logger --app-tag-* --verify-integrity --config-logger-dir
    --error-injection-* --rerun-mode --enable-msc --disable-msc --enable-ft-package --calc-ft-timeouts
    --run-workload-inspector-server --inprocess-* --use-tokenizer-model-from-checkpoint-args
    --no-use-tokenizer-model-from-checkpoint-args --skip-samples-to-recompute --disable-last-saved
    --batch-invariant-mode --rampup-batch-size --decrease-batch-size-if-needed
""".split()

CHECKPOINTS = """
    --save --save-* --no-save-* --load --load-* --no-load-* --non-persistent-* --ckpt-* --async-*
    --dist-ckpt-* --use-dist-ckpt* --auto-detect-ckpt-format --pretrained-checkpoint
    --use-persistent-ckpt-worker --replication* --use-mp-args-from-checkpoint-args
    --no-use-mp-args-from-checkpoint-args --exit-on-missing-checkpoint --dist-ckpt-format* --auto-resume
""".split()

DATA = """
    --data-path --data-args-path --train-data-path --valid-data-path --test-data-path
    --per-split-data-args-path --data-cache-path --mock-data --split --num-workers --reset-position-ids
    --reset-attention-mask --eod-mask-loss --no-create-attention-mask-in-dataloader
    --create-attention-mask-in-dataloader --num-dataset-builder-threads --no-mmap-bin-files
    --mmap-bin-files --object-storage-cache-path --fim-* --vocab-file --merge-file --tokenizer-*
    --tiktoken-* --null-tokenizer-* --legacy-tokenizer --s3-cache-path --mid-level-dataset-surplus
    --retriever-seq-length --sample-rate --mask-prob --short-seq-prob --data-impl --masked-softmax-fusion
    --allow-ambiguous-pad-tokens --trust-remote-code --metadata-path --special-tokens
""".split()

MATHEMATICS = """
    --rotary-* --no-rope-* --rope-* --use-rope-scaling --norm-epsilon --layernorm-epsilon
    --no-persist-layer-norm --attention-softmax-in-fp32 --apply-query-key-layer-scaling
    --attention-dropout --apply-residual-connection-post-layernorm --no-weight-decay-cond-type
    --apply-wd-to-qk-layernorm --swiglu-limit --glu-linear-offset --softmax-type --mscale* --beta-fast
    --beta-slow --yarn-* --mrope-section --softmax-scale --scale-embedding --initial-loss-scale
    --loss-scale* --min-loss-scale --hysteresis --fp16-lm-cross-entropy --mtp-loss-scaling-factor
    --qk-clip* --log-max-attention-logit --embedding-init-method-std --fp8-amax-* --fp8-margin
    --fp8-interval --fp8-recipe --no-fp8-wgrad --fp8-wgrad --te-precision-config-file
""".split()

KERNELS = """
    --use-mcore-models --spec --no-masked-softmax-fusion --no-bias-*-fusion --bias-*-fusion
    --no-rope-fusion --no-gradient-accumulation-fusion --cross-entropy-fusion-impl
    --no-use-te-activation-func --use-te-activation-func --te-rng-tracker --tp-comm-* --disable-tp-comm-*
    --overlap-* --no-overlap-* --delay-wgrad-compute --align-* --no-align-* --ddp-* --use-nccl-ub
    --use-ring-exchange-p2p --use-tp-pp-dp-mapping --distributed-backend --distributed-timeout-* --nccl-*
    --sharp-* --use-sharp --disable-gloo-process-groups --enable-gloo-process-groups
    --no-async-tensor-model-parallel-allreduce --no-scatter-gather-tensors-in-pipeline --batch-p2p*
    --cp-comm-type --hierarchical-context-parallel-sizes --lazy-mpu-init --local-rank
    --account-for-*-split --high-priority-stream-groups --torch-fsdp2-*
    --microbatch-group-size-per-virtual-pipeline-stage --use-precision-aware-optimizer --no-fuse-*
    --check-weight-hash-across-dp-replicas-interval --suggested-communication-unit-size
    --grad-reduce-in-fp32 --megatron-fsdp-grad-comm-dtype --init-model-with-meta-device
    --fsdp-double-buffer --no-pin-cpu-grads --no-pin-cpu-params --overlap-cpu-optimizer-d2h-h2d
    --use-torch-optimizer-for-cpu-offload --profile* --use-pytorch-profiler --record-memory-history
    --memory-snapshot-path --nvtx-ranges --enable-experimental --symmetric-ar-type
    --use-transformer-engine-op-fuser --jit-*
""".split()

EXPERTS = """
    --moe-router-* --moe-aux-loss-coeff --moe-z-loss-coeff --moe-input-jitter-eps --moe-grouped-gemm
    --moe-use-legacy-grouped-gemm --moe-token-dispatcher-type --moe-enable-deepep --moe-deepep-*
    --moe-permute-fusion --moe-per-layer-logging --moe-extended-tp --moe-use-upcycling --moe-upcycling-*
    --moe-token-drop-policy --moe-pad-expert-input-to-capacity --moe-shared-expert-overlap
    --moe-apply-probs-on-input --overlap-moe-* --moe-flex-dispatcher-* --moe-hybridep-*
    --disable-vision-class-token --img-h --img-w --patch-dim --vocab-extra-ids
    --moe-expert-capacity-factor --moe-layer-recompute-none --mtp-use-* --max-tokens-to-oom
""".split()

WITHOUT_EFFECT = [*TRAINING, *CHECKPOINTS, *DATA, *MATHEMATICS, *KERNELS, *EXPERTS]

OWN_NAMES = ("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size", "--encoder-num-layers")
"""Names by which an argument list is known to be Megatron-LM's."""
