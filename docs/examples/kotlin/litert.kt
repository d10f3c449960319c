/** Stand-ins: the input is written to a file, the outputs are given. */
package com.google.ai.edge.litert

import android.content.res.AssetManager
import java.io.File

enum class Accelerator { CPU, GPU, NPU }

class TensorBuffer : AutoCloseable {
    var bytes = ByteArray(0)
    var numbers = listOf<String>()

    fun writeInt8(data: ByteArray) {
        bytes = data
    }

    fun readFloat() = numbers.map { it.toFloat() }.toFloatArray()

    fun readInt() = numbers.map { it.toInt() }.toIntArray()

    override fun close() {}
}

class CompiledModel private constructor() : AutoCloseable {
    data class CpuOptions(val numThreads: Int? = null)

    class Options(vararg val accelerators: Accelerator) {
        var cpuOptions: CpuOptions? = null
    }

    fun createInputBuffer(inputName: String) = TensorBuffer()

    fun createOutputBuffer(outputName: String) = TensorBuffer()

    fun run(
        inputs: Map<String, TensorBuffer>,
        outputs: Map<String, TensorBuffer>,
    ) {
        File(System.getProperty("input"))
            .writeBytes(inputs.getValue("images").bytes)
        for ((name, buffer) in outputs) {
            buffer.numbers = System.getProperty(name, "0").split(",")
        }
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
