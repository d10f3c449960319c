/** Stand-ins: the input is written to a file, the outputs are given. */
package com.google.ai.edge.litert

import android.content.res.AssetManager
import java.io.File

enum class Accelerator { CPU, GPU, NPU }

class TensorBuffer : AutoCloseable {
    var bytes = ByteArray(0)
    var floats = FloatArray(0)

    fun writeInt8(data: ByteArray) {
        bytes = data
    }

    fun readFloat(): FloatArray = floats

    override fun close() {}
}

class CompiledModel private constructor() : AutoCloseable {
    data class CpuOptions(val numThreads: Int? = null)

    class Options(vararg val accelerators: Accelerator) {
        var cpuOptions: CpuOptions? = null
    }

    fun createInputBuffers() = listOf(TensorBuffer())

    fun createOutputBuffers() = listOf(TensorBuffer())

    fun run(inputs: List<TensorBuffer>, outputs: List<TensorBuffer>) {
        File(System.getProperty("input")).writeBytes(inputs[0].bytes)
        val logits = System.getProperty("logits").split(",")
        outputs[0].floats = logits.map { it.toFloat() }.toFloatArray()
    }

    override fun close() {}

    companion object {
        fun create(
            assets: AssetManager,
            name: String,
            options: Options = Options(Accelerator.CPU),
        ): CompiledModel {
            assets.open(name).close()
            return CompiledModel()
        }
    }
}
