/** Stand-ins that compute with java.awt what Android does. */
package android.graphics

import java.awt.image.BufferedImage
import java.io.File
import javax.imageio.ImageIO
import kotlin.math.roundToInt

class Bitmap(private val image: BufferedImage) {
    val width: Int get() = image.width
    val height: Int get() = image.height

    fun getPixels(
        pixels: IntArray,
        offset: Int,
        stride: Int,
        x: Int,
        y: Int,
        width: Int,
        height: Int,
    ) {
        image.getRGB(x, y, width, height, pixels, offset, stride)
    }

    companion object {
        fun createBitmap(
            source: Bitmap,
            x: Int,
            y: Int,
            width: Int,
            height: Int,
        ): Bitmap = Bitmap(source.image.getSubimage(x, y, width, height))

        /** Weighs the four pixels around the centre of each new pixel. */
        fun createScaledBitmap(
            source: Bitmap,
            width: Int,
            height: Int,
            filter: Boolean,
        ): Bitmap {
            require(filter)
            val scaled = BufferedImage(width, height, BufferedImage.TYPE_INT_RGB)
            for (y in 0 until height) {
                val (top, bottom, below) = place(y, height, source.height)
                for (x in 0 until width) {
                    val (left, right, beside) = place(x, width, source.width)
                    var color = 0
                    for (shift in listOf(16, 8, 0)) {
                        fun level(row: Double, column: Double) = 255 and
                            (source.image.getRGB(column.toInt(), row.toInt()) shr shift)
                        val upper = level(top, left) * (1 - beside) +
                            level(top, right) * beside
                        val lower = level(bottom, left) * (1 - beside) +
                            level(bottom, right) * beside
                        val mean = upper * (1 - below) + lower * below
                        color = (color shl 8) or mean.roundToInt()
                    }
                    scaled.setRGB(x, y, color)
                }
            }
            return Bitmap(scaled)
        }

        /** Returns the two nearest pixels and the weight of the second. */
        private fun place(index: Int, size: Int, sourceSize: Int): List<Double> {
            val last = sourceSize - 1.0
            val centre = (index + 0.5) * sourceSize / size - 0.5
            val position = centre.coerceIn(0.0, last)
            val first = kotlin.math.floor(position)
            return listOf(first, minOf(first + 1, last), position - first)
        }
    }
}

class ImageDecoder {
    var allocator = 0

    class ImageInfo

    class Source(val path: String)

    fun interface OnHeaderDecodedListener {
        fun onHeaderDecoded(
            decoder: ImageDecoder, info: ImageInfo, source: Source
        )
    }

    companion object {
        const val ALLOCATOR_SOFTWARE = 1

        fun createSource(
            resolver: android.content.ContentResolver,
            uri: android.net.Uri,
        ) = Source(uri.path)

        fun decodeBitmap(
            source: Source, listener: OnHeaderDecodedListener
        ): Bitmap {
            listener.onHeaderDecoded(ImageDecoder(), ImageInfo(), source)
            return Bitmap(ImageIO.read(File(source.path)))
        }
    }
}
